package console

import (
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

// page is one page of the console.
type page struct {
	path   string // pattern of http.ServeMux
	title  string
	follow follower // keeps the page up to date while it is open; nil = it stays as it was loaded
	body   func(*request) (html, error)
}

// A follower is a function that starts to watch the data of an open page. It has nothing to do with followers in Raft.
// The channel news receives an element when the page may have changed. The caller must call closed when the page is
// closed.
type follower func(*request) (news <-chan struct{}, closed func(), err error)

// followSnapshots follows the state of the cluster.
func followSnapshots(r *request) (news <-chan struct{}, closed func(), err error) {
	changed := make(chan struct{}, 1)
	return changed, r.console.watcher.open(changed), nil
}

// pages lists all pages in the order of the menu. Pages with a variable in the path are not in the menu.
func pages() []page {
	return []page{
		{"/{$}", "Overview", followSnapshots, overviewBody},
		{"/nodes", "Nodes", followSnapshots, nodesBody},
		{"/nodes/{node}", "Node", followSnapshots, nodeBody},
		{"/groups", "Groups", followSnapshots, groupsBody},
		{"/groups/{group}", "Group", followSnapshots, groupBody},
		{"/applications", "Applications", followSnapshots, applicationsBody},
		{callsPath, "Calls", followCalls, callsBody},
		{"/state", "State", nil, stateBody},
		{"/components", "Components", followSnapshots, componentsBody},
		{"/locks", "Locks", nil, locksBody},
		{"/configuration", "Configuration", nil, configurationBody},
		{"/jobs", "Jobs", nil, jobsBody},
		{"/actors", "Actors", nil, actorsBody},
		{"/workflows", "Workflows", nil, workflowsBody},
		{"/topics", "Topics", nil, topicsBody},
		tryPage(),
		{"/docs", "API", nil, docsBody},
	}
}

const documentHead = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">` +
	`<meta name="color-scheme" content="light dark"><title>%Quorate</title>` +
	`<link rel="icon" href="/assets/icon.svg" type="image/svg+xml"><link rel="stylesheet" href="/assets/console.css">`

// document renders a whole page.
func (r *request) document(p page, body html) html {
	cluster := ""
	if v := r.snap.self(); v != nil {
		cluster = v.Status.Node.Cluster
	}
	title := p.title
	if of := r.PathValue("node") + r.PathValue("group"); of != "" {
		title += " " + of
	}
	return h(documentHead+`<script src="/assets/console.js" defer></script>%</head>
<body><a class="skip" href="#main">Skip to the content</a>%%
<main id="main" tabindex="-1"><h1>%</h1><div id="live"%>%%</div></main>%</body></html>`,
		esc(title+" · "+cluster+" · "),
		when(p.follow != nil, `<noscript><meta http-equiv="refresh" content="10"></noscript>`),
		r.header(cluster), r.navigation(p), esc(title), when(p.follow != nil, " data-live"), r.banner(), body,
		r.footer())
}

func (r *request) header(cluster string) html {
	mode := badge("neutral", "read-only")
	if r.console.config.Write {
		mode = badge("write", "writing allowed")
	}
	return h(`<header class="top"><a href="/" class="brand"><img src="/assets/icon.svg" alt="" width="22" height="22">`+
		`Quorate</a><span class="cluster">cluster %</span><span class="grow"></span>`+
		`<span id="stale" class="stale" role="status" hidden>Connection lost: these figures are old</span>%`+
		`<form method="post" action="/logout">%<button class="plain">Sign out</button></form></header>`,
		esc(cluster), mode, r.csrf())
}

func (r *request) navigation(current page) html {
	var links []html
	for _, p := range pages() {
		if strings.Contains(p.path, "{") && p.path != "/{$}" {
			continue
		}
		path := strings.TrimSuffix(p.path, "{$}")
		at := path == strings.TrimSuffix(current.path, "{$}") || path != "/" && strings.HasPrefix(current.path,
			path+"/")
		links = append(links, h(`<li><a href="%"%>%</a></li>`, esc(path), when(at, ` aria-current="page"`),
			esc(p.title)))
	}
	return h(`<nav aria-label="Pages"><ul>%</ul></nav>`, joined(links))
}

func (r *request) footer() html {
	v := r.snap.self()
	if v == nil {
		return "<footer></footer>"
	}
	return h("<footer>Quorate %, served by node %</footer>", esc(v.Status.Node.Version), esc(v.Status.Node.ID))
}

// banner renders the health of the cluster in one sentence. Every page has it at the top.
func (r *request) banner() html {
	level, text := health(r.snap)
	return h(`<p id="health" class="banner %" role="status"><span class="dot" aria-hidden="true"></span>`+
		`<span class="grow">%</span><small>% UTC</small></p>`, esc(level), esc(text),
		esc(r.snap.At.UTC().Format("15:04:05")))
}

// csrf renders the hidden field with the CSRF token, which every form needs.
func (r *request) csrf() html { return hidden("csrf", r.session.csrf) }

// signIn answers a browser that has not signed in with a page that explains how to sign in.
func (c *Console) signIn(w http.ResponseWriter, status int, text string) {
	writePage(w, status, plainPage("Sign in", h("<p>%</p><p>Run this command on the machine of the node, as the user "+
		"of the node. It prints a link that signs one browser in:</p><pre><code>quorate console</code></pre>",
		esc(text))))
}

// failed answers with an error page.
func (c *Console) failed(r *request, status int, text string) {
	writePage(r.w, status, plainPage(http.StatusText(status), failure(text)+
		`<p><a href="/">Back to the overview</a></p>`))
}

// failure renders an error message.
//
//go:noinline
func failure(text string) html { return h(`<p class="notice fail" role="alert">%</p>`, esc(text)) }

// plainPage renders a page without the navigation.
func plainPage(title string, body html) html {
	return h(documentHead+`</head><body class="plain"><main id="main"><h1>%</h1>%</main></body></html>`,
		esc(title+" · "), esc(title), body)
}

// self returns the view of the node that serves the console; nil = it is not known.
func (s *Snapshot) self() *schema.NodeView {
	for _, m := range s.Members {
		if m.Self {
			return m.View
		}
	}
	return nil
}

// card renders a titled part of a page. The script finds a card by its id, and replaces only the cards that changed.
//
//go:noinline
func card(id, title string, body html) html {
	return h(`<section id="%" class="card" aria-labelledby="%-title"><h2 id="%-title">%</h2>%</section>`, esc(id),
		esc(id), esc(id), esc(title), body)
}

// scroll wraps a wide part of a page, so that it scrolls sideways on narrow screens.
//
//go:noinline
func scroll(name string, body html) html {
	return h(`<div class="scroll" tabindex="0" role="region" aria-label="%">%</div>`, esc(name), body)
}

// grid renders a table. The names of the columns are separated by |.
//
//go:noinline
func grid(caption, head string, rows []html) html {
	if len(rows) == 0 {
		return `<p class="empty">None.</p>`
	}
	var cells []html
	for name := range strings.SplitSeq(head, "|") {
		cells = append(cells, h(`<th scope="col">%</th>`, esc(name)))
	}
	return scroll(caption, h(`<table><caption class="hidden">%</caption><thead><tr>%</tr></thead>`+
		`<tbody>%</tbody></table>`, esc(caption), joined(cells), joined(rows)))
}

// pairs renders a list of elements made by pair.
//
//go:noinline
func pairs(list ...html) html {
	var b strings.Builder
	b.WriteString("<dl>")
	for _, p := range list {
		b.WriteString(string(p))
	}
	b.WriteString("</dl>")
	return html(b.String())
}

// pair renders a name with a value.
//
//go:noinline
func pair(name, value string) html { return pairOf(name, text(value)) }

//go:noinline
func pairOf(name string, value html) html {
	return h("<div><dt>%</dt><dd>%</dd></div>", esc(name), value)
}

// badge renders a short coloured word. The kinds are ok, warn, fail, neutral and write.
//
//go:noinline
func badge(kind, word string) html { return h(`<span class="badge %">%</span>`, esc(kind), esc(word)) }

// dim renders a paragraph of less prominent text.
//
//go:noinline
func dim(s string) html { return h(`<p class="dim">%</p>`, esc(s)) }

// figure renders a large number with a label and, if there are samples, a chart.
//
//go:noinline
func figure(label, value string, chart html) html {
	return h(`<div class="figure"><span class="label">%</span><strong>%</strong>%</div>`, esc(label), esc(value), chart)
}

// figures renders a group of figures.
//
//go:noinline
func figures(id, name string, list html) html {
	return h(`<section id="%" class="figures" aria-label="%">%</section>`, esc(id), esc(name), list)
}

// link renders a link to the path with the given segments, and escapes them.
//
//go:noinline
func link(label string, segments ...string) html {
	path := ""
	for _, s := range segments {
		path += "/" + url.PathEscape(s)
	}
	return h(`<a href="%">%</a>`, esc(path), esc(label))
}

// leastSamples is the number of samples that a chart needs to fill its full width. A chart with fewer samples is empty
// on the left.
const leastSamples = 30

// chart draws values as a line, the oldest value first. The vertical axis begins at zero. name describes the chart
// for screen readers.
//
//go:noinline
func chart(name string, values []float32) html {
	const width, height = 240.0, 44.0
	top := float32(0)
	for _, v := range values {
		if v == v && v > top { // not NaN
			top = v
		}
	}
	if len(values) < 2 || top == 0 {
		return `<svg class="chart" viewBox="0 0 240 44" preserveAspectRatio="none" aria-hidden="true">` +
			`<line x1="0" y1="43" x2="240" y2="43"/></svg>`
	}
	var line strings.Builder
	step := width / float64(max(len(values), leastSamples)-1)
	first := width - step*float64(len(values)-1)
	for i, v := range values {
		if v != v {
			v = 0
		}
		line.WriteString(string(coordinate(first+step*float64(i)) + "," +
			coordinate(height-1-(height-4)*float64(v/top)) + " "))
	}
	points := esc(line.String())
	return h(`<svg class="chart" viewBox="0 0 240 44" preserveAspectRatio="none" role="img" aria-label="%">`+
		`<polygon points="%,43 %240,43"/><polyline points="%"/></svg>`,
		esc(name), coordinate(first), points, points)
}

// series picks one value of each sample.
//
//go:noinline
func series(samples []Sample, pick func(Sample) float32) []float32 {
	out := make([]float32, len(samples))
	for i, s := range samples {
		out[i] = pick(s)
	}
	return out
}

// number formats a rate or count with few digits.
//
//go:noinline
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v == 0:
		return "0"
	case v < 10 && v != math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v < 10_000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v < 1_000_000:
		return strconv.FormatFloat(v/1000, 'f', 1, 64) + " k"
	default:
		return strconv.FormatFloat(v/1_000_000, 'f', 1, 64) + " M"
	}
}

// perSecond formats a rate that may not be known yet.
//
//go:noinline
func perSecond(r schema.Rates, v float64) string {
	if !r.Known {
		return "–"
	}
	return number(v) + "/s"
}

// seconds formats a duration of v seconds in a suitable unit.
//
//go:noinline
func seconds(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v < 0.001:
		return strconv.FormatFloat(v*1e6, 'f', 0, 64) + " µs"
	case v < 1:
		return strconv.FormatFloat(v*1e3, 'f', 1, 64) + " ms"
	default:
		return strconv.FormatFloat(v, 'f', 1, 64) + " s"
	}
}

// size formats a number of bytes in a suitable unit.
//
//go:noinline
func size(v float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 || v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64) + " " + units[i]
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[i]
}

// moment formats a time, and how long ago it was or how soon it is.
//
//go:noinline
func moment(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	text, d := at.UTC().Format("Jan 2 15:04:05")+" UTC", at.Sub(now)
	if d > 0 {
		return text + " (in " + age(d) + ")"
	}
	return text + " (" + age(-d) + " ago)"
}

// age formats a duration in its largest units.
//
//go:noinline
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h " + strconv.Itoa(int(d.Minutes())%60) + " min"
	default:
		return strconv.Itoa(int(d.Hours()/24)) + " days"
	}
}
