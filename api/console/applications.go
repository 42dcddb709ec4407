package console

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strconv"
	"unicode/utf8"

	"github.com/quorate/quorate/api/admin/schema"
)

const (
	maxGraph  = 40 // applications in the graph, so that it is readable; the tables list all
	maxLabels = 16 // arrows of the graph that have a label
)

// applicationsBody shows where applications run and which of them call each other.
func applicationsBody(r *request) (html, error) {
	instances, edges := r.snap.instances(), r.snap.edges()
	apps := applications(instances, edges)
	return card("graph", "Who calls whom", graph(apps, edges)) + card("apps", "Applications", appTable(apps)) +
		card("calls", "Calls", callTable(edges)) +
		card("instances", "Instances", instanceTable(instances)), nil
}

// instances returns the application instances that this node knows. It returns nil if the snapshot does not contain
// what this node knows of the cluster.
func (s *Snapshot) instances() []schema.AppInstance {
	if v := s.self(); v != nil {
		return v.Apps
	}
	return nil
}

// call has the totals and the rates of the calls from one application to another.
type call struct {
	edge
	callRate
	Total, Errors uint64
}

// edges returns the calls between applications, summed over all nodes. The most frequent calls come first.
func (s *Snapshot) edges() []call {
	sum := map[edge]*call{}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, c := range m.View.Figures.Calls {
			at := edge{c.From, c.To}
			if sum[at] == nil {
				sum[at] = &call{edge: at, callRate: s.Calls[at]}
			}
			sum[at].Total += c.Count
			sum[at].Errors += c.Errors
		}
	}
	var out []call
	for _, c := range sum {
		out = append(out, *c)
	}
	sort.Slice(out, func(i, k int) bool {
		a, b := out[i], out[k]
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) < 0
	})
	return out
}

// application is what the console knows of an application.
type application struct {
	name      string
	level     string // ok = all callable instances are healthy, warn = some, fail = none; empty = none is callable
	instances int
	in, out   callRate
}

// applications returns all applications that run or call each other, sorted by name.
func applications(instances []schema.AppInstance, edges []call) []application {
	byName := map[string]*application{}
	of := func(name string) *application {
		if byName[name] == nil {
			byName[name] = &application{name: name}
		}
		return byName[name]
	}
	for i := range instances {
		one, level := of(instances[i].App), levelFail
		one.instances++
		switch instances[i].State {
		case "uncalled":
			continue
		case "healthy":
			level = levelOK
		}
		if one.level != "" && one.level != level {
			level = levelWarn
		}
		one.level = level
	}
	for i := range edges {
		of(edges[i].From).out.add(edges[i].callRate)
		of(edges[i].To).in.add(edges[i].callRate)
	}
	out := make([]application, 0, len(byName))
	for _, one := range byName {
		out = append(out, *one)
	}
	sort.Slice(out, func(i, k int) bool { return out[i].name < out[k].name })
	return out
}

// appTable renders a table with one line for each application and its calls in and out.
func appTable(list []application) html {
	var rows []html
	for i := range list {
		a := &list[i]
		word := "no instance"
		switch a.level {
		case "":
			if a.instances > 0 {
				word = "not called"
			}
		case levelOK:
			word = "healthy"
		case levelWarn:
			word = "some unhealthy"
		case levelFail:
			word = "unhealthy"
		}
		rows = append(rows, row(esc(a.name), badge(cmp.Or(a.level, "neutral"), word), esc(strconv.Itoa(a.instances)),
			a.in.show(), a.in.share(), a.out.show(), a.out.share()))
	}
	return grid("Applications", "Application|State|Instances|Calls in|of these failed|Calls out|of these failed", rows)
}

func (c *callRate) add(o callRate) { c.All, c.Failed = c.All+o.All, c.Failed+o.Failed }

func (c callRate) show() html { return esc(number(c.All) + "/s") }

// share renders the percentage of the calls that fail.
func (c callRate) share() html {
	switch {
	case c.All == 0:
		return text("")
	case c.Failed == 0:
		return "0 %"
	}
	return badge(levelWarn, number(math.Ceil(1000*c.Failed/c.All)/10)+" %")
}

func callTable(edges []call) html {
	var rows []html
	for i := range edges {
		c := &edges[i]
		failed := num(c.Errors)
		if c.Errors > 0 {
			failed = badge(levelWarn, strconv.FormatUint(c.Errors, 10))
		}
		rows = append(rows, row(text(c.From), text(c.To), c.show(), c.share(), num(c.Total), failed))
	}
	return grid("Calls", "From|To|Rate|of these failed|Calls since start|Failed since start", rows)
}

func instanceTable(list []schema.AppInstance) html {
	var rows []html
	for i := range list {
		a := &list[i]
		level := "neutral"
		switch a.State {
		case "healthy":
			level = levelOK
		case "unhealthy":
			level = levelFail
		case "demoted":
			level = levelWarn
		}
		rows = append(rows, row(esc(a.App), text(a.Namespace), link(a.Node, "nodes", a.Node), badge(level, a.State),
			text(a.Protocol), esc(strconv.Itoa(a.Load)), esc(strconv.FormatInt(a.Calls, 10))))
	}
	return grid("Instances", "Application|Namespace|Node|State|Protocol|Load|Calls from here in flight", rows)
}

// box is an application in the graph. x and y are the coordinates of its middle.
type box struct{ x, y, wide float64 }

const (
	graphWide = 900.0
	boxTall   = 34.0
)

// place puts applications on an ellipse. It returns the box of each application, by name, and the height of the
// picture.
func place(apps []application) (at map[string]box, tall float64) {
	at = map[string]box{}
	n := float64(len(apps))
	down := min(40+26*n, 220) // half of the height of the ellipse
	if n < 3 {
		down = 0
	}
	top, bottom := math.Inf(1), math.Inf(-1)
	for i := range apps {
		turn := 2*math.Pi*float64(i)/n - math.Pi/2
		if n == 2 {
			turn += math.Pi / 2 // side by side
		}
		across := 360.0
		if n == 1 {
			across = 0
		}
		sin, cos := math.Sincos(turn)
		b := box{graphWide/2 + across*cos, down * sin,
			28 + 8.2*float64(utf8.RuneCountInString(shortened(apps[i].name)))}
		at[apps[i].name], top, bottom = b, min(top, b.y), max(bottom, b.y)
	}
	const margin = 50
	for name, b := range at {
		b.y += margin - top
		at[name] = b
	}
	return at, bottom - top + 2*margin
}

func shortened(name string) string {
	if list := []rune(name); len(list) > 16 {
		return string(list[:15]) + "…"
	}
	return name
}

// graph draws the applications on an ellipse and the calls between them as arrows.
func graph(apps []application, edges []call) html {
	if len(apps) == 0 {
		return `<p class="empty">No application is known.</p>`
	}
	more := len(apps) - maxGraph
	apps = apps[:min(len(apps), maxGraph)]
	at, tall := place(apps)
	var arrows, labels, boxes []html
	var taken []box // places of boxes and labels
	for _, b := range at {
		taken = append(taken, box{b.x, b.y, b.wide})
	}
	for i := range edges {
		c := &edges[i]
		from, okFrom := at[c.From]
		to, okTo := at[c.To]
		if okFrom && okTo {
			line, label, places := arrow(c, from, to)
			arrows = append(arrows, line)
			if free, ok := freePlace(places, taken); ok && len(labels) < maxLabels {
				labels, taken = append(labels, free.label(label, c.Failed > 0)), append(taken, free)
			}
		}
	}
	for i := range apps {
		boxes = append(boxes, at[apps[i].name].draw(apps[i].name, apps[i].level))
	}
	picture := h(`<svg class="graph" viewBox="0 0 900 %" role="img" aria-label="%"><defs>%%</defs>%%%</svg>`,
		coordinate(tall), esc(plural(len(apps), "application")+" and "+plural(len(edges), "arrow")+
			" from callers to called ones; the tables below list them"),
		marker("arrow"), marker("arrow-fail"), joined(arrows), joined(boxes), joined(labels))
	if more > 0 {
		return scroll("Graph", picture) + dim(plural(more, "more application")+" in the tables below")
	}
	return scroll("Graph", picture)
}

//go:noinline
func coordinate(v float64) html { return html(strconv.FormatFloat(v, 'f', 1, 64)) }

func marker(id html) html {
	return h(`<marker id="%" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="10" markerHeight="10" `+
		`markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z"/></marker>`, id)
}

// freePlace chooses where to draw the label of an arrow. It returns the first of the given places that does not overlap
// a taken place. If there is none, ok is false, and the arrow gets no label.
func freePlace(places, taken []box) (free box, ok bool) {
	for _, p := range places {
		if !slices.ContainsFunc(taken, func(t box) bool {
			return math.Abs(p.x-t.x) < (p.wide+t.wide)/2 && math.Abs(p.y-t.y) < boxTall
		}) {
			return p, true
		}
	}
	return free, false
}

// alongCurve returns the possible positions of the label on an arrow, the best first. Position 0 is the calling
// application, and 1 is the called application. Positions near the caller come first, so that the labels of two
// opposite arrows do not overlap.
func alongCurve() []float64 { return []float64{0.35, 0.25, 0.45, 0.18, 0.55, 0.65, 0.75, 0.82} }

// arrow draws the calls from one application to another. It returns the line, the text of the label, and the possible
// places of the label. The line is curved, so that calls in both directions have separate lines. The line is wider if
// the rate of calls is higher.
func arrow(c *call, from, to box) (line html, shown string, places []box) {
	class, end := html("edge"), html("arrow")
	shown = number(c.All) + "/s"
	if c.Failed > 0 {
		class, end = "edge fail", "arrow-fail"
		shown += ", " + number(c.Failed) + "/s fail"
	}
	title := c.From + " calls " + c.To + ": " + shown + "; " + strconv.FormatUint(c.Total, 10) + " since the start, " +
		strconv.FormatUint(c.Errors, 10) + " failed"
	dx, dy := to.x-from.x, to.y-from.y
	length := math.Hypot(dx, dy)
	wide := 7*float64(len(shown)) + 8
	var d html
	if length == 0 { // the application calls itself
		places = []box{{from.x, from.y - 40, wide}}
		d = h("M % C % % %", from.moved(-18, -boxTall/2), from.moved(-40, -48), from.moved(40, -48),
			from.moved(18, -boxTall/2))
	} else {
		bend := box{x: (from.x+to.x)/2 - dy/length*26, y: (from.y+to.y)/2 + dx/length*26}
		begin, finish := from.border(bend), to.border(bend)
		for _, t := range alongCurve() {
			a, b, e := (1-t)*(1-t), 2*t*(1-t), t*t
			places = append(places, box{a*begin.x + b*bend.x + e*finish.x, a*begin.y + b*bend.y + e*finish.y, wide})
		}
		d = h("M % Q % %", begin.moved(0, 0), bend.moved(0, 0), finish.moved(0, 0))
	}
	line = h(`<path class="%" d="%" stroke-width="%" marker-end="url(#%)"><title>%</title></path>`, class, d,
		coordinate(1.2+min(3, math.Sqrt(c.All)/10)), end, esc(title))
	return line, shown, places
}

// label draws the label of an arrow.
func (b box) label(shown string, fails bool) html {
	return h(`<rect class="under" x="%" y="%" width="%" height="18" rx="4"/><text class="rate%" x="%" y="%" `+
		`text-anchor="middle">%</text>`, coordinate(b.x-b.wide/2), coordinate(b.y-9), coordinate(b.wide),
		when(fails, " fail"), coordinate(b.x), coordinate(b.y+4), esc(shown))
}

// moved returns the point that is dx and dy away from the middle of b, as text for the path of an SVG.
func (b box) moved(dx, dy float64) html { return coordinate(b.x+dx) + " " + coordinate(b.y+dy) }

// border returns the point where an arrow between b and another box begins or ends. The point is on the straight line
// between the middles of the two boxes, 3 units outside b.
func (b box) border(to box) box {
	dx, dy := to.x-b.x, to.y-b.y
	part := min((b.wide/2+3)/max(math.Abs(dx), 0.1), (boxTall/2+3)/max(math.Abs(dy), 0.1), 1)
	return box{x: b.x + dx*part, y: b.y + dy*part}
}

func (b box) draw(name, level string) html {
	x := b.x - b.wide/2
	return h(`<g class="app %"><title>%</title><rect x="%" y="%" rx="8" width="%" height="34"/>`+
		`<circle cx="%" cy="%" r="4"/><text x="%" y="%">%</text></g>`, esc(cmp.Or(level, "neutral")), esc(name),
		coordinate(x), coordinate(b.y-boxTall/2), coordinate(b.wide), coordinate(x+13), coordinate(b.y),
		coordinate(x+22), coordinate(b.y+5), esc(shortened(name)))
}
