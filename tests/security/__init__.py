"""What an attacker may try, by the rows of docs/security.md."""
