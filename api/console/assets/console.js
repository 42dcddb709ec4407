"use strict";
// Keeps an open page up to date, and asks before something is deleted. Pages work without this script.

(() => {
  const live = document.getElementById("live");
  const stale = document.getElementById("stale");

  let pressed = null; // where the mouse or a finger is down: what is replaced then gets no click
  document.addEventListener("pointerdown", (event) => { pressed = event.target; });
  ["pointerup", "pointercancel"].forEach((name) => document.addEventListener(name, () => {
    setTimeout(() => { pressed = null; });
  }));

  // busy reports whether a person is using a part of the page: then it is not replaced.
  const busy = (part) => {
    const active = document.activeElement;
    const chosen = document.getSelection();
    return (active && active !== part && part.contains(active) && active.matches("input, select, textarea, button")) ||
      (chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode)) || (pressed && part.contains(pressed));
  };

  const reached = "a[href], button, input, select, textarea, summary, [tabindex='0']"; // with the Tab key

  // update replaces the parts that have changed. A part is an element with an id.
  const update = (html) => {
    const next = new DOMParser().parseFromString(html, "text/html").body;
    const ids = (parent) => Array.from(parent.children, (child) => child.id).join(" ");
    if (ids(next) !== ids(live)) {
      if (!busy(live)) live.replaceChildren(...next.childNodes);
      return;
    }
    Array.from(next.children).forEach((part, i) => {
      const old = live.children[i];
      if (old.isEqualNode(part) || busy(old)) return;
      const scrolls = Array.from(old.querySelectorAll(".scroll"), (box) => box.scrollLeft);
      const at = Array.from(old.querySelectorAll(reached)).indexOf(document.activeElement);
      old.replaceWith(part);
      part.querySelectorAll(".scroll").forEach((box, k) => { box.scrollLeft = scrolls[k] || 0; });
      const again = at >= 0 && part.querySelectorAll(reached)[at];
      if (again) again.focus({ preventScroll: true });
    });
  };

  if (live && live.hasAttribute("data-live")) {
    let source = null;
    const open = () => {
      if (source) return;
      source = new EventSource(location.pathname + location.search);
      source.addEventListener("body", (event) => {
        stale.hidden = true;
        update(event.data);
      });
      source.onerror = () => {
        stale.hidden = false;
        if (source.readyState === EventSource.CLOSED) {
          source = null;
          setTimeout(open, 5000);
        }
      };
    };
    const close = () => {
      if (source) source.close();
      source = null;
    };
    // A page that nobody sees costs nothing.
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    window.addEventListener("pagehide", close);
    open();
  }

  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (button && button.dataset.confirm && !window.confirm(button.dataset.confirm)) event.preventDefault();
  });

  // Application and store belong together: another application has other stores.
  const app = document.querySelector('form[action="/state"] input[name="app"]');
  if (app) {
    app.addEventListener("change", () => {
      app.form.elements.store.disabled = true;
      app.form.submit();
    });
  }
})();
