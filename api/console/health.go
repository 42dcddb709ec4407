package console

import (
	"cmp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

// Levels of health, also the names of their styles.
const (
	levelOK   = "ok"
	levelWarn = "warn"
	levelFail = "fail"
)

// group is one replication group as the whole cluster sees it.
type group struct {
	schema.GroupStatus             // as its leader reports it, or otherwise another node
	Leads              bool        // GroupStatus is from its leader
	Views              []groupView // one of every node that holds the group, by node id
}

// groupView is a group as one node sees it.
type groupView struct {
	Node string
	schema.GroupStatus
}

// groups merges the reports of all nodes about the groups. It returns the groups in order of their ids.
func (s *Snapshot) groups() []group {
	byID := map[uint64]*group{}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, one := range m.View.Status.Groups {
			all := byID[one.ID]
			if all == nil {
				all = &group{GroupStatus: one}
				byID[one.ID] = all
			}
			leads := one.State == "leader"
			if leads && (!all.Leads || one.Term > all.Term) || !all.Leads && all.Leader == "" && one.Leader != "" {
				all.GroupStatus, all.Leads = one, leads
			}
			if one.State != "routed" {
				all.Views = append(all.Views, groupView{m.Node, one})
			}
		}
	}
	var out []group
	for _, one := range byID {
		sort.Slice(one.Views, func(i, k int) bool { return one.Views[i].Node < one.Views[k].Node })
		out = append(out, *one)
	}
	sort.Slice(out, func(i, k int) bool { return out[i].ID < out[k].ID })
	return out
}

// silent returns the nodes that should answer and do not.
func (s *Snapshot) silent() (out []Member) {
	for _, m := range s.Members {
		if m.View == nil && m.State != "left" {
			out = append(out, m)
		}
	}
	return out
}

// health describes the cluster in one sentence.
func health(s *Snapshot) (level, text string) {
	if s == nil || len(s.Members) == 0 {
		return levelWarn, "The node is starting."
	}
	groups, silent := s.groups(), s.silent()
	var broken, unknown []string
	for _, g := range groups {
		if g.Leader == "" {
			broken = append(broken, groupName(g.ID)+" has no leader")
		} else if !g.Writes && g.Leads {
			broken = append(broken, groupName(g.ID)+" refuses writes")
		} else if !g.Leads {
			unknown = append(unknown, "the leader of "+groupName(g.ID)+", "+g.Leader+", does not answer")
		}
	}
	if len(broken) > 0 {
		return levelFail, "Writes fail: " + strings.Join(broken, ", ") + missing(silent, "; ") + "."
	}
	answering := 0
	for _, m := range s.Members {
		if m.View != nil {
			answering++
		}
	}
	problems := len(s.alerts())
	switch {
	case len(unknown) > 0:
		return levelFail, "Writes may fail: " + strings.Join(unknown, ", ") + "."
	case len(silent) > 0:
		return levelWarn, "Reads and writes work" + missing(silent, ", but ") + "."
	case problems > 0:
		return levelWarn, "Reads and writes work, with " + plural(problems, "problem") + ", see the overview."
	}
	return levelOK, "Healthy: " + plural(answering, "node") + ", " + plural(len(groups), "group") +
		" with a leader, no problem."
}

// missing returns a text about silent, the nodes that do not answer, such as "node n2 does not answer". The text begins
// with the prefix lead. If silent is empty, missing returns "".
func missing(silent []Member, lead string) string {
	if len(silent) == 0 {
		return ""
	}
	names := make([]string, len(silent))
	for i, m := range silent {
		names[i] = m.Node
	}
	if len(names) == 1 {
		return lead + "node " + names[0] + " does not answer"
	}
	return lead + "nodes " + strings.Join(names, ", ") + " do not answer"
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}

// alert is a problem that an operator should know about. Name lists the corresponding alerts in deploy/prometheus,
// separated by commas. For an issue that a node reports, Name is schema.Issue.About.
type alert struct{ Level, Name, Where, Text string }

const (
	firesFor     = 5 * time.Minute  // how long an alert of a counter fires after the counter has grown
	changesIn    = 10 * time.Minute // period in which changes of leadership are counted
	manyChanges  = 3
	slowLog      = 0.1 // seconds
	slowSamples  = 15  // number of consecutive slow samples: half a minute
	manyErrors   = 0.05
	leastErrors  = 5 // fewer failed calls in a minute are no alert
	backupTooOld = 26 * time.Hour
)

// sorted sorts alerts, errors first.
func sorted(alerts []alert) []alert {
	sort.Slice(alerts, func(i, k int) bool {
		a, b := &alerts[i], &alerts[k]
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Where, b.Where),
			cmp.Compare(a.Text, b.Text)) < 0
	})
	return alerts
}

// alerts returns the present problems, errors first. These are the problems that nodes report, and the alerts of
// deploy/prometheus whose conditions are true now. Prometheus may show such an alert later, because many of its rules
// have a delay.
func (s *Snapshot) alerts() (out []alert) {
	for _, m := range s.silent() {
		name := "QuorateNodeDown"
		if m.State == "failed" {
			name += ", QuorateMembersFailed"
		}
		out = append(out, alert{levelFail, name, m.Node, m.Err})
	}
	for _, g := range s.groups() {
		where := groupName(g.ID)
		if g.Leader == "" {
			out = append(out, alert{levelFail, "QuorateNoLeader", where, cmp.Or(g.Reason, "no node leads the group")})
		}
		if n := s.leaderChanges(g.ID); n > manyChanges {
			out = append(out, alert{levelWarn, "QuorateLeaderChanges", where, "leadership has changed " +
				strconv.Itoa(n) + " times in ten minutes"})
		}
	}
	for _, e := range s.edges() {
		if r := s.Recent[partOf{e.From, e.To}]; r.failing() {
			out = append(out, alert{levelWarn, "QuorateInvokeErrors", e.To, number(100*r.Failed/r.All) +
				" % of the calls from " + e.From + " fail"})
		}
	}
	for _, m := range s.Members {
		if m.View != nil {
			out = append(out, s.alertsOf(m)...)
		}
	}
	return sorted(append(out, s.backupAlerts()...))
}

// leaderChanges counts the changes of leadership of a group in the period changesIn before the snapshot.
func (s *Snapshot) leaderChanges(group uint64) (n int) {
	list := s.leaders(group)
	for i := range list {
		if i+1 < len(list) && s.At.Sub(list[i].At) < changesIn {
			n++
		}
	}
	return n
}

// backupAlerts returns the problems with the backups of the cluster. Backups are optional: if the cluster has never
// made a backup, only a failed backup is a problem.
func (s *Snapshot) backupAlerts() (out []alert) {
	var b schema.Backups
	for _, m := range s.Members {
		if m.View != nil {
			one := m.View.Figures.Backup
			b = schema.Backups{Last: max(b.Last, one.Last), Scheduled: max(b.Scheduled, one.Scheduled),
				Every: max(b.Every, one.Every), Failing: b.Failing || one.Failing}
		}
	}
	now := float64(s.At.Unix())
	if b.Last > 0 && now-b.Last > backupTooOld.Seconds() {
		out = append(out, alert{levelWarn, "QuorateNoBackup", "backups", "no server has written a backup for a day"})
	}
	if b.Failing {
		out = append(out, alert{levelWarn, "QuorateBackupLate", "backups", "the last scheduled backup failed"})
	} else if b.Every > 0 && b.Scheduled > 0 && now-b.Scheduled > 2*b.Every {
		out = append(out, alert{levelWarn, "QuorateBackupLate", "backups", "scheduled backups are late"})
	}
	return out
}

// alertsOf returns the alerts of a node that answers.
func (s *Snapshot) alertsOf(m Member) (out []alert) {
	if m.View == nil {
		return nil
	}
	for i := range m.View.Alerts {
		a := &m.View.Alerts[i]
		if _, grew := s.Grew[partOf{m.Node, alertKey(a)}]; a.Grows && !grew {
			continue
		}
		level, text := levelWarn, a.Text
		if a.Fails {
			level = levelFail
		}
		if a.About != "" {
			text = a.About + ": " + text
		}
		out = append(out, alert{level, a.Name, m.Node, text})
	}
	if p99 := s.Rates[m.Node].SyncP99; slow(s.Past[m.Node]) {
		out = append(out, alert{levelWarn, "QuorateDiskSlow", m.Node, "the 99th percentile of log writes is " +
			seconds(p99)})
	}
	for _, c := range m.View.Figures.StoreErrors {
		if r := s.Recent[storeOf(m.Node, c.Name)]; r.failing() {
			out = append(out, alert{levelFail, "QuorateStateErrors", m.Node, number(100*r.Failed/r.All) +
				" % of the requests to store " + c.Name + " fail"})
		}
	}
	for _, i := range m.View.Status.Issues {
		out = append(out, alert{levelWarn, i.About, m.Node, i.Reason})
	}
	return out
}

// slow reports whether log writes are slow in all of the newest slowSamples samples.
func slow(past []Sample) bool {
	for i := range slowSamples {
		if at := len(past) - 1 - i; at < 0 || !(past[at].SyncP99 > slowLog) { // NaN = no write
			return false
		}
	}
	return true
}
