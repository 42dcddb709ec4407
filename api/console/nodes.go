package console

import (
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// nodesBody lists the nodes of the cluster.
func nodesBody(r *request) (html, error) {
	return card("nodes", "Nodes of the cluster", nodeTable(r.snap)), nil
}

// nodeTable renders a table with one line for each node.
func nodeTable(s *Snapshot) html {
	var rows []html
	groups := s.groups()
	for _, m := range s.Members {
		name := link(m.Node, "nodes", m.Node)
		if m.Self {
			name += `<span class="dim"> (serves this page)</span>`
		}
		none := text("")
		v := m.View
		if v == nil {
			rows = append(rows, row(name, nodeState(m), esc(m.Role), none, none, none, none, none, none, none, none,
				text(m.Version)))
			continue
		}
		rates := s.Rates[m.Node]
		rows = append(rows, row(name, nodeState(m), esc(m.Role), text(leads(v)), text(behind(groups, m.Node)),
			esc(perSecond(rates, rates.Requests)), esc(seconds(rates.P99)), esc(cores(rates)),
			esc(size(v.Figures.Memory)), text(diskFree(v)),
			esc(age(time.Duration(v.Status.Node.UptimeMS)*time.Millisecond)), esc(v.Status.Node.Version)))
	}
	return grid("Nodes", "Node|State|Role|Leads|Behind|Requests|p99|CPU|Memory|Disk free|Uptime|Version", rows)
}

// behind returns the largest number of log entries that a node is behind the leader of a group, as text. If no leader
// has reported a number, the result is "".
func behind(groups []group, node string) string {
	lag, known := uint64(0), false
	for _, one := range groups {
		for _, s := range one.Servers {
			if s.Node == node && s.Lag != nil {
				lag, known = max(lag, *s.Lag), true
			}
		}
	}
	if !known {
		return ""
	}
	return entries(lag)
}

// nodeState renders whether a node answers and is ready.
func nodeState(m Member) html {
	switch {
	case m.State == "left":
		return badge("neutral", "left")
	case m.View == nil:
		return badge(levelFail, "no answer")
	case m.State == "failed":
		return badge(levelWarn, "lost by gossip")
	case !m.View.Status.Ready:
		return badge(levelWarn, "not ready")
	default:
		return badge(levelOK, "ready")
	}
}

// leads lists the groups that a node leads.
func leads(v *schema.NodeView) string {
	var out []string
	for _, one := range v.Status.Groups {
		if one.State == "leader" {
			out = append(out, groupName(one.ID))
		}
	}
	if len(out) > 3 {
		return plural(len(out), "group")
	}
	return strings.Join(out, ", ")
}

func cores(r schema.Rates) string {
	if !r.Known {
		return "–"
	}
	return strconv.FormatFloat(r.CPU*100, 'f', 0, 64) + " %"
}

func diskFree(v *schema.NodeView) string {
	if v.Figures.DiskFree == 0 {
		return "" // a node without data
	}
	return size(v.Figures.DiskFree)
}

// nodeBody renders the page of one node.
func nodeBody(r *request) (html, error) {
	for _, m := range r.snap.Members {
		if m.Node == r.PathValue("node") {
			return r.node(m), nil
		}
	}
	return "", fault.New(fault.NotFound, "console", "the cluster has no node "+r.PathValue("node"))
}

func (r *request) node(m Member) html {
	now := r.snap.At
	head := card("node", "State of the node", pairs(pairOf("State", nodeState(m)), pair("Role", m.Role),
		pair("Seen by gossip", m.State+" since "+moment(m.Since, now)), pair("Peer port", m.Peer),
		pair("Gossip port", m.Gossip), pair("Server", m.ServerID), pair("Version", m.Version)))
	v := m.View
	if v == nil {
		return head + card("error", "Why it does not answer", h("<p>%</p>", text(m.Err)))
	}
	id, f, rates, past := v.Status.Node, &v.Figures, r.snap.Rates[m.Node], r.snap.Past[m.Node]
	line := func(label, value, title string, pick func(Sample) float32) html {
		return figure(label, value, chart(title, series(past, pick)))
	}
	return head + figures("rates", "Figures of the node",
		line("Requests", perSecond(rates, rates.Requests), "requests per second",
			func(s Sample) float32 { return s.Requests })+
			line("p99", seconds(rates.P99), "99th percentile", func(s Sample) float32 { return s.P99 })+
			line("Log writes p99", seconds(rates.SyncP99), "99th percentile of log writes",
				func(s Sample) float32 { return s.SyncP99 })+
			line("CPU", cores(rates), "processor use", func(s Sample) float32 { return s.CPU })) +
		card("issues", "Problems", alertList(sorted(r.snap.alertsOf(m)))) +
		card("process", "Process and disk", pairs(pair("Memory", size(f.Memory)), pair("Heap", size(f.Heap)),
			pair("Goroutines", number(f.Goroutines)), pair("Threads", number(f.Threads)),
			pair("Open files", number(f.Files)), pair("Disk free", diskFree(v)), pair("Log store", id.LogStore),
			pair("Data directory", id.DataDir), pair("Log written", size(float64(f.LogBytes))),
			pairOf("Snapshots taken", num(f.Snapshots)), pairOf("Elections started", num(f.Elections)),
			pair("Started", moment(id.Started, now)))) +
		card("security", "Credentials between nodes", certificate(v, now)) +
		card("groups", "Groups on this node", r.groupsOn(v)) +
		card("connections", "Open connections", connections(f.Connections)) +
		card("apps", "Applications on this node", appsOn(v)) +
		card("log", "Last warnings and errors of the log", logLines(v.Warnings, now))
}

func certificate(v *schema.NodeView, now time.Time) html {
	s, end := v.Status.Security, ""
	if s.CertificateEnds != nil {
		end = moment(*s.CertificateEnds, now)
	}
	return pairs(pair("Traffic between nodes", s.Nodes), pair("Certificate ends", end),
		pair("Fingerprints of tokens", strings.Join(s.Tokens, ", ")))
}

func (r *request) groupsOn(v *schema.NodeView) html {
	var rows []html
	groups := r.snap.groups()
	for _, one := range v.Status.Groups {
		lag := ""
		for i := range groups {
			if groups[i].ID == one.ID {
				lag = behind(groups[i:i+1], v.Status.Node.ID)
			}
		}
		rows = append(rows, row(groupLink(one.ID), esc(one.State), leaderLink(one.Leader), num(one.Term),
			num(one.CommitIndex), num(one.AppliedIndex), text(lag), esc(number(float64(one.Keys))),
			esc(size(float64(one.DiskBytes+one.LogBytes))), text(one.Reason)))
	}
	return grid("Groups on this node", "Group|State|Leader|Term|Commit index|Applied index|Behind|Keys|Size|Problem",
		rows)
}

func appsOn(v *schema.NodeView) html {
	var rows []html
	for _, a := range v.Status.Node.Apps {
		rows = append(rows, row(esc(a.ID), text(a.Namespace), text(strings.Join(a.API, ", ")),
			text(strings.Join(a.GRPC, ", "))))
	}
	return grid("Applications on this node", "Application|Namespace|HTTP API|gRPC API", rows)
}

func connections(list []schema.NamedCount) html {
	var out []html
	for _, c := range list {
		out = append(out, pair(c.Name, number(c.Value)))
	}
	return pairs(out...)
}

// counts renders a table of counts.
func counts(head string, list []schema.NamedCount) html {
	var rows []html
	for _, c := range list {
		rows = append(rows, row(esc(c.Name), text(c.Part), esc(number(c.Value))))
	}
	return grid("Counts", head, rows)
}

func logLines(list []schema.LogRecord, now time.Time) html {
	if len(list) == 0 {
		return `<p class="empty">None since the node started.</p>`
	}
	var lines []html
	for _, l := range list {
		level := levelWarn
		if l.Level == "ERROR" {
			level = levelFail
		}
		lines = append(lines, h(`<li><time>%</time>%<span>%</span></li>`, esc(stamp(l.Time, now)),
			badge(level, strings.ToLower(l.Level)), esc(l.Text)))
	}
	return h(`<ul class="log">%</ul>`, joined(lines))
}
