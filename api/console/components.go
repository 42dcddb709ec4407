package console

import (
	"cmp"
	"sort"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

// componentsBody lists the components of all nodes, and shows how often state stores and bindings were used.
func componentsBody(r *request) (html, error) {
	var stores, bindings []schema.NamedCount
	for _, m := range r.snap.Members {
		if m.View != nil {
			stores = append(stores, m.View.Figures.Stores...)
			bindings = append(bindings, m.View.Figures.Bindings...)
		}
	}
	return card("components", "Components", componentTable(r.snap)) +
		card("reloads", "Reading the files", reloads(r.snap)) +
		card("stores", "Calls of state stores since the start", counts("Store|Operation|Calls", merge(stores))) +
		card("bindings", "Operations of bindings since the start", counts("Binding|Outcome|Operations",
			merge(bindings))), nil
}

// componentTable renders a table with one line for each component. Identical components of several nodes share one
// line.
func componentTable(s *Snapshot) html {
	nodes := map[schema.NodeComponent][]html{}
	var list []schema.NodeComponent
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, c := range m.View.Components {
			if nodes[c] == nil {
				list = append(list, c)
			}
			nodes[c] = append(nodes[c], link(m.Node, "nodes", m.Node)+" ")
		}
	}
	sort.SliceStable(list, func(i, k int) bool { return list[i].Name < list[k].Name })
	var rows []html
	for _, c := range list {
		level := "neutral"
		switch c.State {
		case "ready":
			level = levelOK
		case "failed":
			level = levelFail
		}
		rows = append(rows, row(esc(c.Name), esc(c.Type+"/"+c.Version), joined(nodes[c]), badge(level, c.State),
			esc(cmp.Or(c.File, "built in")), text(c.Reason)))
	}
	return grid("Components", "Component|Type|Nodes|State|Declared in|Problem", rows)
}

// reloads renders a table with one line for each node. A line shows when the node last read its component files, and
// whether the node runs with the components in these files.
func reloads(s *Snapshot) html {
	var rows []html
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		f, state, last := &m.View.Figures, badge(levelOK, "as in the files"), "at the start"
		if f.ReloadFailed {
			state = badge(levelFail, "not as in the files")
		}
		if f.ReloadedAt > 0 {
			last = moment(time.Unix(int64(f.ReloadedAt), 0), s.At)
		}
		var problems []string
		for _, i := range m.View.Status.Issues {
			if f.ReloadFailed {
				problems = append(problems, i.About+": "+i.Reason)
			}
		}
		rows = append(rows, row(link(m.Node, "nodes", m.Node), state, esc(last), num(f.Reloads),
			text(strings.Join(problems, "; "))))
	}
	return grid("Reading the files", "Node|State|Last read|Changes read since the start|Problem", rows)
}

// merge sorts list by name and part, and adds the values of all elements that have the same name and part.
func merge(list []schema.NamedCount) []schema.NamedCount {
	sort.SliceStable(list, func(i, k int) bool {
		return cmp.Or(cmp.Compare(list[i].Name, list[k].Name), cmp.Compare(list[i].Part, list[k].Part)) < 0
	})
	var out []schema.NamedCount
	for _, c := range list {
		if n := len(out); n > 0 && out[n-1].Name == c.Name && out[n-1].Part == c.Part {
			out[n-1].Value += c.Value
			continue
		}
		out = append(out, c)
	}
	return out
}
