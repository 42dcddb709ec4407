package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
)

// methodExamine asks a node for its clock, and whether it reaches the caller.
const methodExamine = "cluster.examine"

const (
	examineWait = 5 * time.Second // for the answer of one node
	clockOK     = 500 * time.Millisecond
	clockWarn   = 5 * time.Second
	tripSlow    = 100 * time.Millisecond
)

// examined is the answer of methodExamine: JSON.
type examined struct {
	Now     int64  `json:"now"` // wall clock, Unix microseconds, when the question came
	Version string `json:"version"`
	Peer    string `json:"peer"` // what is wrong with the way back to the caller's ports; empty = nothing
	UDP     string `json:"udp"`
	TCP     string `json:"tcp"`
	Spent   int64  `json:"spent"` // microseconds between question and answer
}

// checkup collects results.
type checkup struct {
	mu  sync.Mutex
	out []api.CheckResult
}

func (c *checkup) add(check, about string, level api.CheckLevel, text, mend string) {
	if level == api.CheckOK {
		mend = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, api.CheckResult{Check: check, About: about, Level: level, Text: text, Mend: mend})
}

// sorted puts what is wrong first, then goes by name.
func (c *checkup) sorted() []api.CheckResult {
	rank := map[api.CheckLevel]int{api.CheckFail: 0, api.CheckWarn: 1, api.CheckOK: 2}
	slices.SortStableFunc(c.out, func(a, b api.CheckResult) int {
		if d := rank[a.Level] - rank[b.Level]; d != 0 {
			return d
		}
		return strings.Compare(a.Check+"\x00"+a.About, b.Check+"\x00"+b.About)
	})
	return c.out
}

// Checkup examines this node: its disk and limits, what it says is wrong itself, and, with
// every other node that is alive, ports both ways, clocks, versions and settings.
func (n *Node) Checkup(ctx context.Context) (api.Checkup, error) {
	var c checkup
	examineDisk(&c, n.config.Data)
	examineLimits(&c)
	n.examineSelf(ctx, &c)
	roster := n.gossip.Load().Roster()
	examineSettings(&c, roster)
	var wg sync.WaitGroup
	for _, m := range roster.Members() {
		switch {
		case m.NodeID == roster.Self().NodeID:
		case m.State == membership.Alive:
			wg.Go(func() { n.examineMember(ctx, &c, &m) })
		case m.State == membership.Failed:
			c.add("member", m.NodeID, api.CheckWarn, "it stopped answering "+n.deps.Now().Sub(m.Since).Round(time.Second).String()+" ago",
				"start it again; a server that is gone for good is taken out with quorate remove "+m.NodeID)
		}
	}
	wg.Wait()
	return api.Checkup{Node: n.host.Identity().Node, Checks: c.sorted()}, nil
}

// examineSelf repeats what status finds wrong.
func (n *Node) examineSelf(ctx context.Context, c *checkup) {
	s, err := n.Status(ctx)
	if err != nil {
		c.add("status", "", api.CheckFail, fault.Text(err), "")
		return
	}
	for _, i := range s.Issues {
		c.add("ready", i.About, api.CheckFail, i.Reason, "")
	}
	if len(s.Issues) == 0 {
		c.add("ready", "", api.CheckOK, "every store and group serves reads and writes", "")
	}
	switch secured := n.config.Security.secured(); {
	case secured:
		c.add("security", "", api.CheckOK, "traffic between nodes is encrypted and authenticated", "")
	case !listen.IsLoopback(n.config.Cluster.Bind):
		c.add("security", "", api.CheckWarn, "traffic between nodes is neither encrypted nor authenticated (--insecure)", "give all nodes a --cluster-token-file")
	}
}

func examineSettings(c *checkup, r *membership.Roster) {
	differences := r.Differences()
	for _, d := range differences {
		c.add("settings", d.Setting, api.CheckWarn, d.String(), "use the same on all nodes")
	}
	if len(differences) == 0 {
		c.add("settings", "", api.CheckOK, fmt.Sprintf("the same on all %d nodes that are alive", len(r.Alive())), "")
	}
}

// examineMember looks at another node and at the ways to it and back.
func (n *Node) examineMember(ctx context.Context, c *checkup, m *membership.Member) {
	ctx, cancel := context.WithTimeout(ctx, examineWait)
	defer cancel()
	const open = "open this port, TCP and for gossip also UDP, in every firewall between the two; see --advertise-address if the address is wrong"
	way := func(check, text string) {
		if text == "" {
			c.add(check, m.NodeID, api.CheckOK, "reached", "")
		} else {
			c.add(check, m.NodeID, api.CheckFail, text, open)
		}
	}
	udp, tcp := n.gossip.Load().Reach(ctx, m)
	way("gossip port to (udp)", fault.Text(udp))
	way("gossip port to (tcp)", fault.Text(tcp))
	id := peerID(m)
	_, err := n.port.Probe(ctx, id)
	way("peer port to", fault.Text(err))
	if err != nil {
		return
	}
	sent := time.Now()
	out, err := n.port.Client().Call(ctx, id, methodExamine, nil)
	trip := time.Since(sent)
	var e examined
	if err == nil {
		err = json.Unmarshal(out, &e)
	}
	if err != nil {
		c.add("answers", m.NodeID, api.CheckFail, fault.Text(err), "see its log and quorate doctor there")
		return
	}
	way("gossip port back (udp)", e.UDP)
	way("gossip port back (tcp)", e.TCP)
	way("peer port back", e.Peer)
	examineTimes(c, m.NodeID, e, sent, trip)
}

// examineTimes judges the clock of another node, and the way to it. The other clock was
// read right after the question had come: half of what was spent on the way later.
func examineTimes(c *checkup, node string, e examined, sent time.Time, trip time.Duration) {
	trip = max(trip-time.Duration(e.Spent)*time.Microsecond, 0)
	ahead := time.UnixMicro(e.Now).Sub(sent.Round(0).Add(trip / 2))
	off := max(ahead.Abs()-trip/2, 0)
	side := "ahead of"
	if ahead < 0 {
		side = "behind"
	}
	text := fmt.Sprintf("%s %s this node, to within %s", ahead.Abs().Round(time.Microsecond), side, (trip / 2).Round(time.Microsecond))
	const mend = "let both machines keep time by NTP; expiry is reckoned from the clock of the leader at its start"
	switch {
	case off > clockWarn:
		c.add("clock", node, api.CheckFail, text, mend)
	case off > clockOK:
		c.add("clock", node, api.CheckWarn, text, mend)
	default:
		c.add("clock", node, api.CheckOK, text, "")
	}
	level := api.CheckOK
	if trip > tripSlow {
		level = api.CheckWarn
	}
	c.add("round trip", node, level, trip.Round(time.Microsecond).String(), "every write waits for a round trip between voters: keep them near each other")
}

// serveExamine answers methodExamine: it tries the ways back to the caller.
func (n *Node) serveExamine(ctx context.Context, r peer.Request) ([]byte, error) {
	begun := n.deps.Now()
	e := examined{Now: begun.UnixMicro(), Version: n.config.Version}
	_, err := n.port.Probe(ctx, r.From.Server)
	e.Peer = fault.Text(err)
	g := n.gossip.Load()
	if g == nil {
		return nil, fault.New(fault.Unavailable, "node.examine", "this node is starting")
	}
	e.UDP, e.TCP = "this node does not know "+r.From.Server+" by gossip", "this node does not know "+r.From.Server+" by gossip"
	for _, m := range g.Roster().Alive() {
		if peerID(&m) == r.From.Server {
			udp, tcp := g.Reach(ctx, &m)
			e.UDP, e.TCP = fault.Text(udp), fault.Text(tcp)
		}
	}
	e.Spent = n.deps.Now().Sub(begun).Microseconds()
	return json.Marshal(e)
}

// peerID is the id of a member at its peer port.
func peerID(m *membership.Member) string {
	if m.Role == membership.Sidecar {
		return raftfsm.SidecarID(m.NodeID)
	}
	return m.ServerID
}
