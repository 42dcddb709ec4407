package browsertest

import (
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// audit checks the accessibility of the open page and returns its problems. It checks the contrast of text, the names
// of links, buttons, fields and pictures, the order of headings, duplicate ids, the headers of tables, and the
// language.
func (b *browser) audit() (problems []string) {
	b.t.Helper()
	b.read(chromedp.Evaluate(auditScript, &problems))
	return problems
}

// maxTabs bounds how often tabs presses the Tab key.
const maxTabs = 60

// tabs presses the Tab key from the beginning of the page, and returns a problem if the key does not reach all
// controls in the order of the page.
func (b *browser) tabs() (problems []string) {
	b.t.Helper()
	var want, got []string
	b.read(chromedp.Evaluate(tabScript, &want))
	want = want[:min(len(want), maxTabs)]
	for range want {
		var at string
		b.run(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`tabName(document.activeElement)`, &at))
		got = append(got, at)
	}
	b.run(chromedp.Evaluate(`document.activeElement.blur()`, nil))
	if w, g := strings.Join(want, "\n"), strings.Join(got, "\n"); w != g {
		problems = append(problems, "the Tab key reaches\n"+g+"\n\nnot\n"+w)
	}
	return problems
}

const tabScript = `window.tabName = (e) => e.tagName + " " + (e.name || "") + " " + (e.getAttribute("href") ||
  e.getAttribute("aria-label") || e.textContent).trim().slice(0, 40);
window.getSelection().removeAllRanges(); document.activeElement.blur();
Array.from(document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"))
  .filter((e) => e.checkVisibility() && !e.closest("details:not([open]) > :not(summary)")).map(tabName)`

const auditScript = `(() => {
  const problems = [];
  const seen = (e) => {
    const r = e.getBoundingClientRect();
    return r.width > 1 && r.height > 1 && getComputedStyle(e).visibility !== "hidden";
  };
  const say = (e, what) => problems.push(what + ": " + (e.outerHTML || "").slice(0, 120));

  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
  const background = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor);
      if (c[3] > 0) layers.push(c);
      if (c[3] === 1) break;
    }
    return layers.reverse().reduce((under, c) => over(c, under), [255, 255, 255]);
  };
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(e) || e.closest("svg, .hidden, .skip, datalist, option")) continue;
    const style = getComputedStyle(e), under = background(e);
    const a = luminance(over(parse(style.color), under)), b = luminance(under);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) say(e, "contrast " + ratio.toFixed(2));
  }

  const name = (e) => (e.getAttribute("aria-label") || (e.getAttribute("aria-labelledby") &&
    document.getElementById(e.getAttribute("aria-labelledby"))?.textContent) || e.textContent || e.title || "").trim();
  document.querySelectorAll("a[href], button, summary").forEach((e) => { if (seen(e) && !name(e)) say(e, "no name"); });
  document.querySelectorAll("input:not([type=hidden]), select, textarea").forEach((e) => {
    if (!e.labels?.length && !e.getAttribute("aria-label")) say(e, "no label");
  });
  document.querySelectorAll("img").forEach((e) => { if (!e.hasAttribute("alt")) say(e, "no alternative text"); });
  document.querySelectorAll("svg").forEach((e) => {
    const named = e.getAttribute("role") === "img" && e.getAttribute("aria-label");
    if (e.getAttribute("aria-hidden") !== "true" && !named) say(e, "picture without a name");
  });
  document.querySelectorAll("section, [role=region]").forEach((e) => {
    if (!name(e)) say(e, "region without a name");
  });
  document.querySelectorAll("table").forEach((e) => {
    if (!e.querySelector("th[scope]")) say(e, "table without headers");
  });
  if (!document.documentElement.lang) problems.push("no language");
  if (document.querySelectorAll("main").length !== 1) problems.push("not one main part");
  if (document.querySelectorAll("h1").length !== 1) problems.push("not one heading of level 1");
  let level = 1;
  document.querySelectorAll("h1, h2, h3, h4").forEach((e) => {
    const next = Number(e.tagName[1]);
    if (next > level + 1) say(e, "heading level skipped");
    level = next;
  });
  const ids = new Set();
  document.querySelectorAll("[id]").forEach((e) => { if (ids.has(e.id)) say(e, "id used twice"); ids.add(e.id); });
  document.querySelectorAll("[tabindex]").forEach((e) => { if (e.tabIndex > 0) say(e, "order of focus changed"); });
  document.querySelectorAll("[onclick]").forEach((e) => say(e, "not reached with the keyboard"));
  return problems;
})()`
