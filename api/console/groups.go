package console

import (
	"net/http"
	"net/url"
	"sort"
	"strconv"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// groupsBody lists the replication groups.
func groupsBody(r *request) (html, error) {
	return card("groups", "Replication groups", groupTable(r.snap)), nil
}

// groupTable renders a table with one line for each group.
func groupTable(s *Snapshot) html {
	var rows []html
	for _, one := range s.groups() {
		voters, down := schema.CountVoters(one.Servers)
		rows = append(rows, row(groupLink(one.ID), groupState(one), leaderLink(one.Leader), num(one.Term),
			esc(strconv.Itoa(voters-down)+" of "+strconv.Itoa(voters)+" reachable"), num(one.CommitIndex),
			esc(number(s.entryRate(one.Leader, one.ID))+"/s"), esc(number(float64(one.Keys))),
			esc(size(float64(one.DiskBytes+one.LogBytes)))))
	}
	return grid("Groups", "Group|State|Leader|Term|Voters|Commit index|Log entries|Keys|Size", rows)
}

//go:noinline
func groupLink(id uint64) html {
	return link(groupName(id), "groups", strconv.FormatUint(id, 10))
}

//go:noinline
func groupName(id uint64) string { return "group " + strconv.FormatUint(id, 10) }

// leaderLink renders a link to the leader of a group, or a dash if none is known.
//
//go:noinline
func leaderLink(node string) html {
	if node == "" {
		return text("")
	}
	return link(node, "nodes", node)
}

// groupState renders whether a group serves reads and writes. Like the command "quorate status", it warns if the loss
// of one more voter would stop writes.
func groupState(one group) html {
	margin := schema.Margin(one.Servers)
	switch {
	case one.Leader == "":
		return badge(levelFail, "no leader")
	case one.Leads && !one.Writes:
		return badge(levelFail, "no writes")
	case one.Reason != "":
		return badge(levelWarn, "see reason")
	case margin != "":
		return badge(levelWarn, "reads and writes; "+margin)
	default:
		return badge(levelOK, "reads and writes")
	}
}

// groupBody renders the page of one group.
func groupBody(r *request) (html, error) {
	for _, one := range r.snap.groups() {
		if strconv.FormatUint(one.ID, 10) == r.PathValue("group") {
			return r.group(one), nil
		}
	}
	return "", fault.New(fault.NotFound, "console", "the cluster has no group "+r.PathValue("group"))
}

func (r *request) group(one group) html {
	var logs []html
	for _, v := range one.Views {
		logs = append(logs, row(link(v.Node, "nodes", v.Node), esc(v.State), num(v.Term), num(v.LastLogIndex),
			num(v.CommitIndex), num(v.AppliedIndex), some(v.SnapshotIndex),
			esc(number(r.snap.entryRate(v.Node, one.ID))+"/s"),
			esc(size(float64(v.LogBytes))), esc(size(float64(v.DiskBytes))), text(v.Reason)))
	}
	var members []html
	for _, s := range one.Servers {
		role, lag := "non-voter", ""
		if s.Voter {
			role = "voter"
		}
		if down := s.Down(); down != "" {
			role += " (" + down + ")"
		}
		if s.Node == one.Leader {
			role += ", leader"
		}
		if s.Lag != nil {
			lag = entries(*s.Lag)
		}
		members = append(members, row(link(s.Node, "nodes", s.Node), esc(role), text(lag), text(s.Reason)))
	}
	return card("group", "State of the group", pairs(pairOf("State", groupState(one)),
		pairOf("Leader", leaderLink(one.Leader)), pairOf("Term", num(one.Term)), pairOf("Keys", num(one.Keys)),
		pair("Problem", one.Reason))) +
		card("members", "Servers, as the leader sees them",
			grid("Servers", "Server|Role|Behind|Why it votes or not", members)) +
		card("replicas", "Log and state on each server", grid("Logs", "Server|State|Term|Last index|Commit index|"+
			"Applied index|Snapshot at|Entries|Log|On disk|Problem", logs)) +
		r.comparisonCard(one) +
		card("leaders", "Last leaders", r.leaderList(one.ID)) +
		r.transferForm(one)
}

// entries formats a number of log entries.
//
//go:noinline
func entries(n uint64) string {
	if n == 1 {
		return "1 entry"
	}
	return strconv.FormatUint(n, 10) + " entries"
}

// leaderList shows the last changes of leadership that the nodes remember.
func (r *request) leaderList(group uint64) html {
	var rows []html
	for _, l := range r.snap.leaders(group) {
		rows = append(rows, row(num(l.Term), leaderLink(l.Leader), esc(moment(l.At, r.snap.At))))
	}
	return grid("Leaders", "Term|Leader|Since", rows) +
		dim("Each node remembers the last leaders it has heard of since it started.")
}

// maxLeaders bounds the leaders that the page of a group shows.
const maxLeaders = 20

// leaders returns the last known leaders of a group, the newest first. The result has at most one leader per term, and
// at most maxLeaders leaders. If several nodes report a leader, the result has the earliest time that they report.
func (s *Snapshot) leaders(group uint64) (out []schema.LeaderSeen) {
	byTerm := map[uint64]schema.LeaderSeen{}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, l := range m.View.Leaders {
			if known, ok := byTerm[l.Term]; l.Group == group && (!ok || l.At.Before(known.At)) {
				byTerm[l.Term] = l
			}
		}
	}
	for _, l := range byTerm {
		out = append(out, l)
	}
	sort.Slice(out, func(i, k int) bool { return out[i].Term > out[k].Term })
	return out[:min(len(out), maxLeaders)]
}

// transferForm renders the form that transfers leadership to another voter. It renders nothing if the console is
// read-only or there is no other voter.
func (r *request) transferForm(one group) html {
	if !r.console.config.Write {
		return ""
	}
	options := []string{"=the most up-to-date voter"}
	for _, s := range one.Servers {
		if s.Voter && s.Node != one.Leader {
			options = append(options, s.Node)
		}
	}
	if len(options) == 1 { // there is no other voter
		return ""
	}
	return card("transfer", "Transfer leadership", h(`<form class="inline" method="post" `+
		`action="/groups/%/transfer">%%<button>Transfer</button></form>`, num(one.ID), r.csrf(),
		choose("to", "to", "", options)))
}

// transferLeader handles the form of transferForm.
func (r *request) transferLeader() error {
	id, err := strconv.ParseUint(r.PathValue("group"), 10, 32)
	if err != nil {
		return fault.New(fault.NotFound, "console", "the cluster has no group "+r.PathValue("group"))
	}
	to := r.PostForm.Get("to")
	var result schema.TransferResult
	result, err = r.console.config.Cluster.TransferLeader(r.Context(), r.leaderOf(id), id, to)
	r.audit(r.Context(), "transfer leadership", "group", id, "to", to, "leader", result.Leader, "error",
		textOrEmpty(err))
	if err != nil {
		return err
	}
	http.Redirect(r.w, r.Request, "/groups/"+url.PathEscape(r.PathValue("group")), http.StatusSeeOther)
	return nil
}

// leaderOf returns the node that leads a group; empty = none is known.
func (r *request) leaderOf(group uint64) string {
	for _, one := range r.console.watcher.current(r.Context()).groups() {
		if one.ID == group {
			return one.Leader
		}
	}
	return ""
}

func textOrEmpty(err error) string {
	if err == nil {
		return ""
	}
	return textOf(err)
}
