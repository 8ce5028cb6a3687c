// Keeps an open page current: replaces the elements that have changed, counts relative times on, and says when there is
// no contact. Without it the page is complete, too, and is loaded again every few seconds.
"use strict";
(() => {
  const contact = document.getElementById("contact");
  const body = document.body;
  // In seconds. The server sends something every 2 s. Without a stream, the page asks as often.
  const silence = 5;
  // The browser's clock may be wrong.
  const ahead = Date.now() * 1000 - Number(body.dataset.now);
  let heard = Date.now();
  let lost = false;
  let ended = false;
  let brief = false;

  function span(seconds) {
    for (const [size, unit] of [[86400, "days"], [3600, "h"], [60, "min"]]) {
      if (seconds >= 2 * size) {
        return `${Math.round(seconds / size)} ${unit}`;
      }
    }
    return `${Math.round(seconds)} s`;
  }

  function say(text, level) {
    // Only a change is announced to those who hear the page.
    if (contact.textContent !== text) {
      contact.textContent = text;
    }
    contact.className = level;
  }

  function tick() {
    if (document.hidden) {
      return;
    }
    const now = Date.now() * 1000 - ahead;
    const seconds = Math.round((Date.now() - heard) / 1000);
    const stale = !ended && seconds >= (lost ? 2 : silence);
    body.classList.toggle("stale", stale);
    for (const controls of document.querySelectorAll("#control, #sample")) {
      controls.inert = stale;
    }
    if (stale) {
      say(`no contact for ${span(seconds)}: what follows is old`, "error");
      // What is shown is no longer known to be so: times stop, too.
      return;
    }
    // The page of a job without a driver is current, too, but nothing lives.
    const quiet = document.querySelector("[data-driver=none]");
    // The notices say that the page itself has no contact with the jobs.
    const away = document.querySelector("#notices > .error");
    say(ended ? "" : lost ? "connecting" : away ? "no contact" : quiet ? "up to date" : "live", "quiet");
    for (const time of document.querySelectorAll("time[data-at]")) {
      const text = `${span(Math.max(0, (now - Number(time.dataset.at)) / 1e6))} ago`;
      if (time.textContent !== text) {
        time.textContent = text;
      }
    }
  }

  function parsed(html, old) {
    const template = document.createElement("template");
    const inSvg = old.namespaceURI.endsWith("svg");
    template.innerHTML = inSvg ? `<svg>${html}</svg>` : html;
    return inSvg ? template.content.firstChild.firstChild : template.content.firstChild;
  }

  // Changes an element into another one, and leaves what is the same in its place: focus, selection and open details
  // stay.
  function change(old, now) {
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
      old.replaceWith(now);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== now.data) {
        old.data = now.data;
      }
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!now.hasAttribute(name) && name !== "open") {
        old.removeAttribute(name);
      }
    }
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) {
        old.setAttribute(name, value);
      }
    }
    const children = [...now.childNodes];
    children.forEach((child, at) => {
      if (at < old.childNodes.length) {
        change(old.childNodes[at], child);
      } else {
        old.append(child);
      }
    });
    while (old.childNodes.length > children.length) {
      old.lastChild.remove();
    }
  }

  // A browser has six connections to a host, for all tabs together. A hidden tab holds none, and of the others only four
  // hold one; a further one asks again and again.
  const streams = 4;
  // The graph begins at the stage that blocks the job, or at its first one.
  const frame = document.querySelector(".graph");
  const place = document.getElementById(document.getElementById("blocked")?.hash.slice(1) ?? "g-s0-live");
  if (frame && place) {
    const inner = place.getBoundingClientRect();
    const outer = frame.getBoundingClientRect();
    frame.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
    frame.scrollTop += inner.top + inner.height / 2 - outer.top - outer.height / 2;
  }

  const path = location.pathname.replace(/\/$/, "");
  let version = body.dataset.version;
  let source = null;
  let opening = false;
  let release = () => {};

  function taken(number) {
    return new Promise((resolve) => {
      navigator.locks.request(`arcbeam-stream-${number}`, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        return lock && new Promise((done) => {
          release = done;
        });
      });
    });
  }

  function leave() {
    source?.close();
    source = null;
    release();
    release = () => {};
  }

  async function follow() {
    if (source || opening || ended || document.hidden) {
      return;
    }
    opening = true;
    brief = true;
    for (let number = 0; brief && navigator.locks && number < streams; number += 1) {
      brief = !(await taken(number));
    }
    opening = false;
    if (document.hidden) {
      leave();
      return;
    }
    listen();
  }

  function listen() {
    const query = new URLSearchParams(location.search);
    query.set("version", version);
    if (brief) {
      query.set("brief", "1");
    }
    source = new EventSource(`${path}/events?${query}`);

    function on(kind, handle) {
      source.addEventListener(kind, (event) => {
        heard = Date.now();
        lost = false;
        handle(JSON.parse(event.data));
        version = event.lastEventId || version;
        tick();
      });
    }

    on("alive", () => {});
    on("change", (fragments) => {
      for (const [id, html] of fragments) {
        const old = document.getElementById(id);
        if (old) {
          change(old, parsed(html, old));
        }
      }
    });
    on("end", () => {
      ended = true;
      leave();
    });
    on("reload", () => {
      leave();
      location.reload();
    });
    source.onopen = () => {
      heard = Date.now();
      lost = false;
    };
    source.onerror = () => {
      lost = lost || !brief;
      // A stream connects again by itself, unless it was refused.
      if (source && (brief || source.readyState === EventSource.CLOSED)) {
        leave();
        setTimeout(follow, 2000);
      }
    };
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      leave();
      return;
    }
    heard = Date.now();
    lost = !ended;
    follow();
    tick();
  });
  setInterval(tick, 1000);
  follow();
  tick();
})();
