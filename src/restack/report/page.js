// Charts, tables and their copies. Runs under a policy that allows no eval, no network and no
// styles in elements: charts use the expression interpreter, texts only ever become text nodes.
(() => {
  "use strict";
  const $ = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // --- charts ---------------------------------------------------------------------------------
  const drawn = new Map(); // element -> the width and theme it was drawn with
  const charts = $("#charts") && JSON.parse($("#charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const tip = $("#tip");

  // as in theme.paint: data and what else comes from the findings are left alone
  const KEEP = new Set(["datasets", "domain", "sort", "title", "description"]);
  function paint(value, colours) {
    if (typeof value === "string") return Object.hasOwn(colours, value) ? colours[value] : value;
    if (Array.isArray(value)) return value.map((item) => paint(item, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [key, KEEP.has(key) ? item : paint(item, colours)]),
    );
  }

  // as in charts.fit
  function fit(spec, width) {
    if (!spec.facet) return { ...spec, width };
    const count = new Set(spec.datasets.rows.map((row) => row.panel)).size;
    const columns = Math.max(1, Math.min(3, count, Math.floor((width - 50) / 200)));
    const inner = Math.floor((width - 70 - (columns - 1) * 26) / columns);
    return { ...spec, columns, spec: { ...spec.spec, width: Math.max(120, inner) } };
  }

  function say(_, event, item, value) {
    if (value === null || value === undefined || value === "") {
      tip.style.visibility = "hidden";
      return;
    }
    tip.textContent = String(value);
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const above = event.clientY - box.height - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 4 ? above : event.clientY + 18}px`;
    tip.style.visibility = "visible";
  }

  async function draw(place) {
    const theme = dark.matches ? "dark" : "light";
    const width = place.clientWidth;
    const now = `${width} ${theme}`;
    if (!width || drawn.get(place) === now) return;
    drawn.set(place, now);
    const { colours, config } = charts.themes[theme];
    const spec = paint(fit(charts.specs[Number(place.dataset.chart)], width), colours);
    const legend = { ...config.legend, columns: width < 480 ? 2 : 0 };
    await vegaEmbed(place, spec, {
      mode: "vega-lite",
      ast: true,
      actions: false,
      renderer: "svg",
      defaultStyle: false,
      config: { ...config, legend },
      tooltip: say,
    });
  }

  if (charts) {
    const near = new IntersectionObserver(
      (seen) => seen.forEach((one) => one.isIntersecting && draw(one.target)),
      { rootMargin: "600px" },
    );
    const places = all(".chart");
    places.forEach((place) => near.observe(place));
    const idle = window.requestIdleCallback ?? ((task) => setTimeout(task, 50));
    const next = async () => {
      const left = places.find((place) => !drawn.has(place) && place.clientWidth);
      if (!left) return;
      await draw(left);
      idle(next);
    };
    addEventListener("load", () => idle(next)); // the others while nothing else is to be done
    let later = 0;
    const again = () => {
      clearTimeout(later);
      later = setTimeout(() => [...drawn.keys()].forEach(draw), 120);
    };
    addEventListener("resize", again);
    dark.addEventListener("change", again);
    addEventListener("scroll", () => (tip.style.visibility = "hidden"), { passive: true });
    addEventListener("beforeprint", () => places.forEach(draw));
  }

  // --- tables ---------------------------------------------------------------------------------
  const collator = new Intl.Collator("en", { numeric: true });

  function compare(a, b) {
    if (a === "" || b === "") return (a === "") - (b === ""); // what is missing comes last
    if (typeof a === "number" && typeof b === "number") return a - b;
    return collator.compare(a, b);
  }

  function wanted(cell) {
    return cell.dataset.v === undefined ? words(cell) : Number(cell.dataset.v);
  }

  // the text of a cell without the mark of what is published and without its interval
  function words(cell) {
    return [...cell.childNodes]
      .filter((node) => !(node.classList?.contains("mark") || node.classList?.contains("pm")))
      .map((node) => node.textContent)
      .join("");
  }

  function furnish(box) {
    const body = $("tbody", box);
    const heads = all("thead th", box);
    const rows = [...body.rows];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const count = $(".count", box);
    const search = $("input", box);

    heads.forEach((head, place) =>
      $("button", head).addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const first = head.dataset.kind === "number" ? "descending" : "ascending";
        const second = first === "ascending" ? "descending" : "ascending";
        const order = before === null ? first : before === first ? second : null;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        let sorted = rows;
        if (order) {
          head.setAttribute("aria-sort", order);
          const sign = order === "ascending" ? 1 : -1;
          const keyed = rows.map((row) => [wanted(row.cells[place]), row]);
          keyed.sort(([a], [b]) => (a === "" || b === "" ? compare(a, b) : sign * compare(a, b)));
          sorted = keyed.map(([, row]) => row);
        }
        body.replaceChildren(...sorted);
      }),
    );

    search?.addEventListener("input", () => {
      const parts = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      rows.forEach((row, place) => {
        row.hidden = !parts.every((part) => texts[place].includes(part));
        left += !row.hidden;
      });
      const of = rows.length.toLocaleString("en");
      count.textContent = parts.length ? `${left.toLocaleString("en")} of ${of} rows` : `${of} rows`;
    });

    all("[data-copy]", box).forEach((button) =>
      button.addEventListener("click", async () => {
        const shown = [...body.rows].filter((row) => !row.hidden);
        await copy(FORMS[button.dataset.copy](heads, shown));
        const said = button.textContent;
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = said), 1200);
      }),
    );
  }

  const title = (head) => $("button", head).textContent;

  // a text that a spreadsheet would take for a formula gets an apostrophe before it
  function cell(value) {
    const text = typeof value === "string" && /^[=+\-@\t\r]./.test(value) ? `'${value}` : `${value}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csv(heads, rows) {
    const extra = heads.map((_, place) =>
      ["low", "high", "n"].filter((name) => rows.some((row) => row.cells[place].dataset[name])),
    );
    const head = heads.flatMap((one, place) => [
      cell(title(one)),
      ...extra[place].map((name) => cell(`${title(one)} ${name}`)),
    ]);
    const lines = rows.map((row) =>
      [...row.cells].flatMap((one, place) => [
        cell(wanted(one)),
        ...extra[place].map((name) => one.dataset[name] ?? ""),
      ]),
    );
    return [head, ...lines].map((line) => line.join(",")).join("\r\n") + "\r\n";
  }

  const shown = (one) => [words(one), $(".pm", one)?.textContent].filter(Boolean).join(" ");

  const TEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "−": "$-$" };
  const tex = (text) =>
    text.replace(/[\\~^±−&%$#_{}]/g, (mark) => TEX[mark] ?? `\\${mark}`).replace(/\s+/g, " ");

  function latex(heads, rows) {
    const sides = heads.map((head) =>
      head.classList.contains("right") ? "r" : head.classList.contains("centre") ? "c" : "l",
    );
    const line = (cells) => `${cells.map(tex).join(" & ")} \\\\`;
    return [
      `\\begin{tabular}{${sides.join("")}}`,
      "\\hline",
      line(heads.map(title)),
      "\\hline",
      ...rows.map((row) => line([...row.cells].map(shown))),
      "\\hline",
      "\\end{tabular}",
      "",
    ].join("\n");
  }

  const md = (text) => text.replace(/[\\`*_[\]<>|~]/g, "\\$&").replace(/\s+/g, " ");

  function markdown(heads, rows) {
    const line = (cells) => `| ${cells.join(" | ")} |`;
    return [
      line(heads.map((head) => md(title(head)))),
      line(heads.map((head) => (head.classList.contains("right") ? "---:" : "---"))),
      ...rows.map((row) => line([...row.cells].map((one) => md(shown(one))))),
      "",
    ].join("\n");
  }

  const FORMS = { csv, latex, markdown };

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"); // where the page may not use the clipboard
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  all(".table").forEach(furnish);

  // --- the numbers behind a chart, as a table made when it is asked for --------------------------
  const FIELDS = [
    ["panel", "panel"], ["series", "series"], ["x", "x"], ["y", "y"],
    ["low", "low (95%)"], ["high", "high (95%)"], ["value", "value"],
  ];

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.append(...children);
    return made;
  }

  function behind(place) {
    const kinds = new Set(["point", "paper", "cell", "tick"]);
    let rows = charts.specs[Number(place.dataset.numbers)].datasets.rows;
    const ticks = rows.some((row) => row.part === "tick");
    rows = rows.filter((row) => (ticks ? row.part === "tick" : kinds.has(row.part)));
    const some = FIELDS.filter(([f]) => rows.some((row) => row[f] !== undefined && row[f] !== null && row[f] !== ""));
    const numeric = (field) => rows.every((row) => typeof row[field] !== "string");
    const head = some.map(([field, name]) =>
      element(
        "th",
        { scope: "col", "data-kind": numeric(field) ? "number" : "text", class: numeric(field) ? "right" : "" },
        element("button", { type: "button" }, name),
      ),
    );
    const body = rows.map((row) =>
      element(
        "tr",
        {},
        ...some.map(([field]) => {
          const value = row[field] ?? "";
          if (typeof value !== "number") return element("td", {}, String(value));
          return element("td", { class: "right", "data-v": value }, String(Number(value.toPrecision(6))));
        }),
      ),
    );
    const tools = ["csv", "latex", "markdown"].map((form) =>
      element("button", { type: "button", "data-copy": form }, { csv: "CSV", latex: "LaTeX", markdown: "Markdown" }[form]),
    );
    const count = element("span", { class: "count" }, `${rows.length.toLocaleString("en")} rows`);
    const box = element(
      "div",
      { class: "table" },
      element("div", { class: "tools" }, count, element("span", {}, "Copy"), ...tools),
      element(
        "div",
        { class: "scroll tall", tabindex: "0" },
        element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
      ),
    );
    place.append(box);
    furnish(box);
  }

  all("[data-numbers]").forEach((place) =>
    place.addEventListener("toggle", () => !$(".table", place) && behind(place)),
  );

  // a link to something folded opens it
  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    const fold = $("details", target);
    if (fold && !fold.dataset.numbers) fold.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
})();
