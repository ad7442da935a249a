// How are elements made and changed? Text is always set as text: names of servers, models and paths are other people's
// words, and what stands there already is left alone, so that what a person has selected stays so.

const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children.filter((each) => each !== null));
  return element;
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Has `parent` hold exactly these, in this order.
function arrange(parent, children) {
  children.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}
