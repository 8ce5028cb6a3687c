// Keeps an open page current: replaces the elements that have changed, counts relative times on, and says when there is
// no contact. Without it the page is complete, too, and is loaded again every few seconds.
"use strict";
(() => {
  // The graph begins at the stage that blocks the job, or at its first one.
  const frame = document.querySelector(".graph");
  const place = document.getElementById(document.getElementById("blocked")?.hash.slice(1) ?? "g-s0-live");
  if (frame && place) {
    magnify(frame, frame.querySelector("svg"));
    const [inner, outer] = [place, frame].map((each) => each.getBoundingClientRect());
    frame.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
    frame.scrollTop += inner.top + inner.height / 2 - outer.top - outer.height / 2;
  }

  // Adds buttons that zoom, and beside a graph that does not fit into its frame all of it, which leads to its parts.
  function magnify(frame, plan) {
    const { width, height } = plan.viewBox.baseVal;
    let zoom = 1;
    const buttons = document.createElement("p");
    for (const [name, factor] of [["Zoom out", 0.8], ["Zoom in", 1.25]]) {
      const button = document.createElement("button");
      button.textContent = name;
      button.addEventListener("click", () => {
        const middle = [frame.scrollLeft + frame.clientWidth / 2, frame.scrollTop + frame.clientHeight / 2];
        const before = zoom;
        zoom = Math.min(3, Math.max(0.1, zoom * factor));
        plan.style.width = `${width * zoom}px`;
        frame.scrollLeft = (middle[0] * zoom) / before - frame.clientWidth / 2;
        frame.scrollTop = (middle[1] * zoom) / before - frame.clientHeight / 2;
      });
      buttons.append(button, " ");
    }
    frame.before(buttons);
    if (frame.scrollHeight <= 2 * frame.clientHeight && frame.scrollWidth <= 2 * frame.clientWidth) return;
    plan.id = "plan";
    const row = document.createElement("div");
    row.className = "zoomed";
    // What the frame shows is marked. Those who use the keyboard scroll the frame.
    row.innerHTML = `<svg class="overview" viewBox="0 0 ${width} ${height}" preserveAspectRatio="none" aria-hidden="true">
      <use href="#plan" width="${width}" height="${height}"/><rect/></svg>`;
    frame.before(row);
    row.prepend(frame);
    const overview = row.querySelector(".overview");
    const mark = overview.querySelector("rect");
    const draw = () => {
      const size = plan.getBoundingClientRect().width / width;
      const [x, y, w, h] = [frame.scrollLeft, frame.scrollTop, frame.clientWidth, frame.clientHeight];
      for (const [name, value] of Object.entries({ x, y, width: w, height: h })) mark.setAttribute(name, value / size);
    };
    frame.addEventListener("scroll", draw);
    new ResizeObserver(draw).observe(plan);
    overview.addEventListener("click", (event) => {
      const box = overview.getBoundingClientRect();
      frame.scrollTop = ((event.clientY - box.top) / box.height) * frame.scrollHeight - frame.clientHeight / 2;
      frame.scrollLeft = ((event.clientX - box.left) / box.width) * frame.scrollWidth - frame.clientWidth / 2;
    });
  }

  // Commands can be copied where the browser allows it: on this machine, or with TLS.
  if (navigator.clipboard) {
    document.body.classList.add("clipboard");
    document.addEventListener("click", async ({ target }) => {
      if (!target.classList.contains("copy")) return;
      await navigator.clipboard.writeText(target.previousElementSibling.textContent);
      target.textContent = "Copied";
    });
  }

  // Only a change is announced to those who hear the page.
  function say(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  // The server shows UTC, which stays as the hint.
  function localize() {
    for (const time of document.querySelectorAll("time[data-clock]")) {
      say(time, new Date(Number(time.dataset.clock) / 1000).toLocaleString("sv"));
    }
  }

  localize();
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
  say(document.getElementById("zone"), `Times are in your time zone, ${timeZone}; the hint of a time is UTC.`);
  let version = document.body.dataset.version;
  // A page that does not change has none.
  if (version === undefined) return;

  const contact = document.getElementById("contact");
  const path = location.pathname.replace(/\/$/, "");
  // In seconds. The server sends something every 2 s. Without a stream, the page asks as often.
  const silence = 5;
  // A browser has six connections to a host, for all tabs together. A hidden tab holds none, and of the others only four
  // hold one; a further one asks repeatedly.
  const streams = 4;
  // The browser's clock may be wrong.
  const ahead = Date.now() * 1000 - Number(document.body.dataset.now);
  let heard = Date.now();
  let [lost, ended, brief, opening] = [false, false, false, false];
  let source = null;
  let release = () => {};

  function span(seconds) {
    const units = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"]];
    const [size, unit] = units.find(([each]) => seconds >= 2 * each || each === 1);
    return `${Math.round(seconds / size)} ${unit}`;
  }

  function tick() {
    if (document.hidden) return;
    const seconds = Math.round((Date.now() - heard) / 1000);
    const stale = !ended && seconds >= (lost ? 2 : silence);
    document.body.classList.toggle("stale", stale);
    for (const controls of document.querySelectorAll("#control, #sample")) controls.inert = stale;
    contact.className = stale ? "error" : "quiet";
    mark(stale);
    if (stale) {
      say(contact, `no contact for ${span(seconds)}: what follows is old`);
      // What is shown is no longer known to be so: times stop, too.
      return;
    }
    // The notices say that the page itself has no contact with the jobs.
    const away = document.querySelector("#notices > .error");
    // The page of a job without a driver is current, too, but nothing lives.
    const quiet = document.querySelector("[data-driver=none]");
    say(contact, ended ? "" : lost ? "connecting" : away ? "no contact" : quiet ? "up to date" : "live");
    for (const time of document.querySelectorAll("time[data-at]")) {
      say(time, `${span(Math.max(0, (Date.now() * 1000 - ahead - Number(time.dataset.at)) / 1e6))} ago`);
    }
    localize();
  }

  // The state of the job is in the title and the icon of its tab.
  function mark(stale) {
    const line = document.querySelector("#headline > .headline");
    if (!line) return;
    const level = stale ? "error" : ["error", "warning"].find((each) => line.classList.contains(each));
    const icon = `/static/icon${level ? `-${level}` : ""}.svg`;
    const word = stale ? "No contact" : line.querySelector("strong").textContent;
    const title = document.title.replace(/^[^:]*(?=: )/, word);
    if (document.title !== title) document.title = title;
    const link = document.getElementById("icon");
    if (link.getAttribute("href") !== icon) link.setAttribute("href", icon);
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
    if (old.isEqualNode(now)) return;
    if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== now.nodeName) {
      old.replaceWith(now);
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of now.attributes) old.setAttribute(name, value);
    const children = [...now.childNodes];
    while (old.childNodes.length > children.length) old.lastChild.remove();
    const places = [...old.childNodes];
    children.forEach((child, at) => (at < places.length ? change(places[at], child) : old.append(child)));
  }

  // Whether this tab gets one of the streams, until it releases it.
  function taken(number) {
    return new Promise((resolve) => {
      navigator.locks.request(`arcbeam-stream-${number}`, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        return lock && new Promise((done) => { release = done; });
      });
    });
  }

  function leave() {
    source?.close();
    release();
    [source, release] = [null, () => {}];
  }

  async function follow() {
    if (source || opening || ended || document.hidden) return;
    [opening, brief] = [true, true];
    for (let at = 0; brief && navigator.locks && at < streams; at += 1) brief = !(await taken(at));
    opening = false;
    if (document.hidden) leave();
    else listen();
  }

  const handlers = {
    open: () => {},
    alive: () => {},
    change: (fragments) => {
      for (const [id, html] of fragments) {
        const old = document.getElementById(id);
        if (old) change(old, parsed(html, old));
      }
    },
    end: () => {
      ended = true;
      leave();
    },
    reload: () => {
      leave();
      location.reload();
    },
  };

  function listen() {
    const query = new URLSearchParams(location.search);
    query.set("version", version);
    if (brief) query.set("brief", "1");
    source = new EventSource(`${path}/events?${query}`);
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        [heard, lost] = [Date.now(), false];
        handle(event.data && JSON.parse(event.data));
        version = event.lastEventId || version;
        tick();
      });
    }
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
    [heard, lost] = [Date.now(), !ended];
    follow();
    tick();
  });
  setInterval(tick, 1000);
  follow();
  tick();
})();
