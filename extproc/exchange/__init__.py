"""Is a request and its response on one ext_proc stream going right? Sans-io: events in, actions out."""
