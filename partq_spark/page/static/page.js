// Keeps what is shown up to date: the server answers with the HTML of sections that changed, drawn from its own templates,
// and here the page is made like it with as few changes as can be, so that focus, scrolling and animations live on.
// Partitions that came to another flow are seen to move there. Rows are filtered and sorted for the one who asks. Nothing
// else: no text is made here but the word on the connection, and how many rows are shown.
"use strict";

(() => {
  const AGAIN_MS = 2000;
  const MOVE_MS = 600;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const live = document.getElementById("live");
  const path = document.body.dataset.news;
  let asking = null;
  let again = 0;

  // --- making the page like what was sent ----------------------------------------------------------------------------

  function alike(old, now) {
    return old.nodeType === now.nodeType && old.nodeName === now.nodeName && (old.id || "") === (now.id || "");
  }

  function makeAttributesLike(old, now) {
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "tabindex") old.removeAttribute(name);
    for (const { name, value } of now.attributes) {
      // Where the keyboard is within a group of cells is the browser's to know.
      if (old.getAttribute(name) !== value && !(name === "tabindex" && old.hasAttribute(name))) old.setAttribute(name, value);
    }
  }

  function makeLike(old, now, known) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
      return;
    }
    if (old.isEqualNode(now)) return;
    makeAttributesLike(old, now);
    let at = old.firstChild;
    for (const wanted of [...now.childNodes]) {
      const same = (wanted.id && known.get(wanted.id)) || (at && !at.id && alike(at, wanted) ? at : null);
      if (same && alike(same, wanted)) {
        if (same === at) at = at.nextSibling;
        else old.insertBefore(same, at);
        makeLike(same, wanted, known);
      } else {
        old.insertBefore(wanted, at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // --- filter and order: of this browser alone, kept in the address ---------------------------------------------------

  const asked = document.getElementById("arrange");

  function arrange(root) {
    if (!asked) return;
    const { find, sort, only } = asked.elements;
    for (const box of root.querySelectorAll("[data-arrange]")) {
      const rows = [...box.children];
      for (const row of rows) {
        const found = (row.dataset.find || "").toLowerCase().includes(find.value.trim().toLowerCase());
        const is_well = box.dataset.arrange !== "stateless" && !row.classList.contains("attention");
        row.hidden = !found || (only.checked && is_well);
      }
      if (sort.value) box.append(...rows.sort((a, b) => b.dataset.lag - a.dataset.lag));
    }
  }

  function count() {
    if (!asked) return;
    const rows = document.querySelectorAll("[data-arrange] > *").length;
    const left = document.querySelectorAll("[data-arrange] > :not([hidden])").length;
    asked.querySelector("output").textContent = left < rows ? `${left} of ${rows} shown` : "";
  }

  function ask() {
    const given = new URLSearchParams([...new FormData(asked)].filter(([, value]) => value)).toString();
    history.replaceState(null, "", location.pathname + (given && "?" + given) + location.hash);
    draw({ ...sent });
  }

  function remember() {
    const given = new URLSearchParams(location.search);
    for (const field of asked.elements) {
      if (field.type === "checkbox") field.checked = given.has(field.name);
      else if (given.has(field.name)) field.value = given.get(field.name);
    }
    asked.hidden = false;
    asked.addEventListener("input", ask);
    asked.addEventListener("submit", (event) => event.preventDefault());
    if (location.search) draw({ ...sent });
  }

  // --- movement -------------------------------------------------------------------------------------------------------

  function places(root) {
    const found = new Map();
    if (calm.matches || document.hidden) return found;
    for (const cell of root.querySelectorAll(".lane .cell[id^=c]")) {
      found.set(cell.id, { lane: cell.closest(".lane").id, at: cell.getBoundingClientRect() });
    }
    return found;
  }

  function move(root, before) {
    const moved = [...root.querySelectorAll(".lane .cell[id^=c]")].filter((cell) => {
      const was = before.get(cell.id);
      return was && was.lane !== cell.closest(".lane").id;
    });
    const now = moved.map((cell) => cell.getBoundingClientRect());
    moved.forEach((cell, i) => {
      const { at } = before.get(cell.id);
      const way = `translate(${at.left - now[i].left}px, ${at.top - now[i].top}px)`;
      cell.animate([{ transform: way, zIndex: 5 }, { transform: "none", zIndex: 5 }], { duration: MOVE_MS, easing: "ease-in-out" });
    });
  }

  // --- news -----------------------------------------------------------------------------------------------------------

  // What every section was when it was sent, to begin with as the page has it.
  const sent = Object.fromEntries([...document.querySelectorAll("section.live")].map((each) => [each.id, each.innerHTML]));

  function draw(sections) {
    Object.assign(sent, sections);
    performance.clearMarks("partq news");
    performance.clearMeasures("partq draw");
    performance.mark("partq news");
    for (const [id, html] of Object.entries(sections)) {
      const section = document.getElementById(id);
      if (!section) continue;
      const template = document.createElement("template");
      template.innerHTML = html;
      const wanted = section.cloneNode(false);
      wanted.append(template.content);
      arrange(wanted);
      const known = new Map([...section.querySelectorAll("[id]")].map((each) => [each.id, each]));
      const before = places(section);
      makeLike(section, wanted, known);
      if (before.size) move(section, before);
      oneStop(section);
    }
    count();
    void document.body.offsetHeight; // laid out, so that the measure counts it
    performance.measure("partq draw", "partq news");
  }

  function say(state, text) {
    live.dataset.state = state;
    const said = live.querySelector(".said");
    if (said.textContent !== text) said.textContent = text;
  }

  // The server answers when there is something that this page has not got, or nothing new after some seconds.
  async function connect() {
    clearTimeout(again);
    if (asking || document.hidden) return;
    const mine = (asking = new AbortController());
    let etag = ""; // all of it is sent at once
    try {
      while (asking === mine) {
        const answer = await fetch(path, { headers: { "If-None-Match": etag }, cache: "no-store", signal: mine.signal });
        if (answer.status !== 304 && !answer.ok) throw new Error(answer.statusText);
        const sections = answer.ok ? await answer.json() : {};
        if (asking !== mine) return;
        etag = answer.headers.get("etag");
        say("live", "live");
        if (answer.ok) draw(sections);
      }
    } catch {
      if (asking !== mine) return;
      say("lost", "connection lost, trying again");
      disconnect();
      again = setTimeout(connect, AGAIN_MS);
    }
  }

  function disconnect() {
    if (asking) asking.abort();
    asking = null;
  }

  // A page that nobody sees asks for nothing.
  function look() {
    if (document.hidden) disconnect();
    else connect();
  }

  // --- keyboard: one stop for all cells of a flow, arrows from cell to cell -----------------------------------------

  function oneStop(root) {
    for (const cells of root.querySelectorAll(".cells")) {
      const stops = cells.querySelectorAll('.cell[tabindex="0"]');
      if (stops.length === 0 && cells.firstElementChild) cells.firstElementChild.tabIndex = 0;
      stops.forEach((stop, i) => {
        if (i > 0 && stop !== document.activeElement) stop.tabIndex = -1;
      });
    }
  }

  const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };

  function step(event) {
    const cell = event.target.closest(".lane .cell");
    if (!cell) return;
    const all = [...document.querySelectorAll(".lane:not([hidden]) .cell")];
    const at = all.indexOf(cell);
    const to = event.key === "Home" ? all[0] : event.key === "End" ? all[all.length - 1] : all[at + (STEPS[event.key] || NaN)];
    if (!to) return;
    event.preventDefault();
    for (const each of to.parentElement.querySelectorAll('.cell[tabindex="0"]')) each.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }

  document.addEventListener("keydown", step);
  if (asked) remember();
  if (path) {
    document.addEventListener("visibilitychange", look);
    addEventListener("pagehide", disconnect);
    addEventListener("pageshow", look);
    look();
  }
})();
