package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/node/network"
)

// methodExamine is the peer method that checks whether the called node can reach the ports of the calling node. The
// answer also has the clock of the called node.
const methodExamine = "cluster.examine"

const (
	examineWait = 5 * time.Second        // for the answer of one node
	clockOK     = 500 * time.Millisecond // a greater difference of two clocks is a warning
	clockWarn   = 5 * time.Second        // a greater difference of two clocks is a failure
	tripSlow    = 100 * time.Millisecond // a longer round trip is a warning
)

// examined is the answer of methodExamine, encoded as JSON.
type examined struct {
	Now     int64  `json:"now"` // wall clock when the request arrived, Unix microseconds
	Version string `json:"version"`
	Peer    string `json:"peer"`  // why the caller's peer port cannot be reached; empty = it can
	UDP     string `json:"udp"`   // why the caller's gossip port cannot be reached over UDP; empty = it can
	TCP     string `json:"tcp"`   // why the caller's gossip port cannot be reached over TCP; empty = it can
	Spent   int64  `json:"spent"` // microseconds between request and answer
}

// Network is how the doctor reaches the other nodes.
type Network interface {
	// Gossip returns the gossip of this node, which is open.
	Gossip() *membership.Gossip
	// Port returns the port for calls between nodes.
	Port() *peer.Port
}

// Status provides the status of the node.
type Status interface {
	Status(ctx context.Context) (schema.NodeStatus, error)
}

// Options are the dependencies and settings of a Doctor. All are required.
type Options struct {
	Node    string // id of this node
	Version string // of the program
	Disk    Disk
	Secured bool   // traffic between nodes is encrypted and authenticated
	Bind    string // address of the peer and gossip ports
	Network Network
	Status  Status
	Now     func() time.Time
	// ClockOffset returns how far the wall clock of this node is ahead of cluster time. within is the maximum error of
	// ahead. On a node without data, ClockOffset returns fault.Unimplemented.
	ClockOffset func(ctx context.Context) (ahead, within time.Duration, err error)
}

// Doctor checks a running node. It is safe for concurrent use.
type Doctor struct{ opts Options }

// New returns a Doctor with the given options.
func New(o Options) *Doctor { return &Doctor{o} }

// Method returns the peer method that checks whether this node can reach the ports of the calling node.
func (d *Doctor) Method() peer.Method {
	return peer.Method{Name: methodExamine, MaxRequest: 1 << 10, Handle: d.serveExamine}
}

// checkup collects results.
type checkup struct {
	mu  sync.Mutex
	out []schema.CheckResult
}

func (c *checkup) add(check, about string, level schema.CheckLevel, text, hint string) {
	if level == schema.CheckOK {
		hint = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, schema.CheckResult{Check: check, About: about, Level: level, Text: text, Fix: hint})
}

// sorted returns the results in this order: failures, warnings, and then all other results. Results of the same level
// are sorted by name.
func (c *checkup) sorted() []schema.CheckResult {
	rank := map[schema.CheckLevel]int{schema.CheckFail: 0, schema.CheckWarn: 1, schema.CheckOK: 2}
	slices.SortStableFunc(c.out, func(a, b schema.CheckResult) int {
		if d := rank[a.Level] - rank[b.Level]; d != 0 {
			return d
		}
		return strings.Compare(a.Check+"\x00"+a.About, b.Check+"\x00"+b.About)
	})
	return c.out
}

// Checkup checks this node and its connections to other nodes:
//
//   - of this node: the disk, the process limits, the issues in its status, and the clock
//   - of every other live node: the ports in both directions, the clock and the round-trip time
//   - of all live nodes together: whether their settings and versions are the same
//
// It adds a warning for every failed node.
func (d *Doctor) Checkup(ctx context.Context) (schema.Checkup, error) {
	var c checkup
	examineDisk(&c, d.opts.Disk)
	examineLimits(&c)
	leaderless := d.examineSelf(ctx, &c)
	d.examineClusterTime(ctx, &c)
	roster := d.opts.Network.Gossip().Roster()
	examineSettings(&c, roster)
	var wg sync.WaitGroup
	for _, m := range roster.Members() {
		switch {
		case m.NodeID == roster.Self().NodeID:
		case m.State == membership.Alive:
			wg.Go(func() { d.examineMember(ctx, &c, &m) })
		case m.State == membership.Failed:
			c.add("member", m.NodeID, schema.CheckWarn, m.NodeID+" stopped answering "+
				d.opts.Now().Sub(m.Since).Round(time.Second).String()+" ago",
				restart(&m, leaderless))
		}
	}
	wg.Wait()
	return schema.Checkup{Node: d.opts.Node, Checks: c.sorted()}, nil
}

// restart returns the hint for a node that has failed. The parameter leaderless is true if some group has no leader. In
// that case, the failed node cannot be removed now.
func restart(m *membership.Member, leaderless bool) string {
	switch {
	case m.Role == membership.Sidecar:
		return "start the node again if it is still needed"
	case leaderless:
		return "start the node again; it cannot be removed while a group has no leader"
	}
	return "start the node again, or remove it permanently with: quorate remove " + m.NodeID
}

// examineSelf adds the issues in the status of this node to c. It returns true if there is a group of which this node
// knows no leader.
func (d *Doctor) examineSelf(ctx context.Context, c *checkup) (leaderless bool) {
	s, err := d.opts.Status.Status(ctx)
	if err != nil {
		c.add("status", "", schema.CheckFail, fault.Text(err), "")
		return false
	}
	for _, i := range s.Issues {
		c.add("ready", i.About, schema.CheckFail, i.Reason, "")
	}
	if len(s.Issues) == 0 {
		c.add("ready", "", schema.CheckOK, "every store and group serves reads and writes", "")
	}
	switch {
	case d.opts.Secured:
		c.add("security", "", schema.CheckOK, "traffic between nodes is encrypted and authenticated", "")
	case !listen.IsLoopback(d.opts.Bind):
		c.add("security", "", schema.CheckWarn, "traffic between nodes is neither encrypted nor authenticated "+
			"(--insecure)", "give all nodes a --cluster-token-file")
	}
	return slices.ContainsFunc(s.Groups, func(g schema.GroupStatus) bool { return g.Leader == "" })
}

// timeOK is how far a clock may be from cluster time without a warning.
const timeOK = time.Second

// examineClusterTime compares the clock of this node with cluster time. If a node becomes leader and its clock is
// ahead, cluster time jumps forward. Values then expire too early, and jobs run too early.
func (d *Doctor) examineClusterTime(ctx context.Context, c *checkup) {
	ctx, cancel := context.WithTimeout(ctx, examineWait)
	defer cancel()
	ahead, within, err := d.opts.ClockOffset(ctx)
	switch {
	case fault.Is(err, fault.Unimplemented):
		return
	case err != nil:
		c.add("cluster time", "", schema.CheckWarn, "not known: "+fault.Text(err), "see the check ready")
		return
	}
	side, level := "ahead of", schema.CheckOK
	if ahead < 0 {
		side = "behind"
	}
	if ahead.Abs()-within >= timeOK {
		level = schema.CheckWarn
	}
	c.add("cluster time", "", level, fmt.Sprintf("the clock of this node is %s %s it, to within %s",
		ahead.Abs().Round(time.Millisecond), side, within.Round(time.Millisecond)),
		"synchronize the clock with NTP: cluster time, which decides when jobs and reminders fire and values expire, "+
			"follows the clock of the leader but never goes back")
}

func examineSettings(c *checkup, r *membership.Roster) {
	differences := r.Differences()
	for _, d := range differences {
		c.add("settings", d.Setting, schema.CheckWarn, d.String(), "use the same value on all nodes")
	}
	if len(differences) == 0 {
		c.add("settings", "", schema.CheckOK, fmt.Sprintf("the same on all %d live nodes", len(r.Alive())), "")
	}
}

// examineMember checks whether this node can reach the ports of node m, and whether m can reach the ports of this node.
// It also compares the clocks of the two nodes.
func (d *Doctor) examineMember(ctx context.Context, c *checkup, m *membership.Member) {
	ctx, cancel := context.WithTimeout(ctx, examineWait)
	defer cancel()
	way := func(check, text, hint string) {
		if text == "" {
			c.add(check, m.NodeID, schema.CheckOK, "reached", "")
		} else {
			c.add(check, m.NodeID, schema.CheckFail, text, hint)
		}
	}
	udp, tcp := d.opts.Network.Gossip().Reach(ctx, m)
	way("gossip port to (udp)", fault.Text(udp), network.ReachHint)
	way("gossip port to (tcp)", fault.Text(tcp), network.ReachHint)
	id := network.PeerID(m)
	_, err := d.opts.Network.Port().Probe(ctx, id)
	way("peer port to", fault.Text(err), network.HintFor(err))
	if err != nil {
		return
	}
	sent := time.Now()
	out, err := d.opts.Network.Port().Client().Call(ctx, id, methodExamine, nil)
	trip := time.Since(sent)
	var e examined
	if err == nil {
		err = json.Unmarshal(out, &e)
	}
	if err != nil {
		c.add("answers", m.NodeID, schema.CheckFail, fault.Text(err),
			"read the log of that node, and run quorate doctor on it")
		return
	}
	way("gossip port back (udp)", e.UDP, network.ReachHint)
	way("gossip port back (tcp)", e.TCP, network.ReachHint)
	way("peer port back", e.Peer, network.ReachHint)
	examineTimes(c, m.NodeID, e, sent, trip)
}

// examineTimes checks the clock of another node, and the round-trip time of a request to that node. The request was
// sent at sentAt, and trip is the time until its answer. examineTimes assumes that the other node read its clock in the
// middle of the round trip.
func examineTimes(c *checkup, node string, e examined, sentAt time.Time, trip time.Duration) {
	trip = max(trip-time.Duration(e.Spent)*time.Microsecond, 0)
	ahead := time.UnixMicro(e.Now).Sub(sentAt.Round(0).Add(trip / 2))
	off := max(ahead.Abs()-trip/2, 0)
	side := "ahead of"
	if ahead < 0 {
		side = "behind"
	}
	text := fmt.Sprintf("%s %s this node, to within %s", ahead.Abs().Round(time.Microsecond), side,
		(trip / 2).Round(time.Microsecond))
	const hint = "synchronize the clocks of both machines with NTP; the leader's clock decides when values expire"
	switch {
	case off > clockWarn:
		c.add("clock", node, schema.CheckFail, text, hint)
	case off > clockOK:
		c.add("clock", node, schema.CheckWarn, text, hint)
	default:
		c.add("clock", node, schema.CheckOK, text, "")
	}
	level := schema.CheckOK
	if trip > tripSlow {
		level = schema.CheckWarn
	}
	c.add("round trip", node, level, trip.Round(time.Microsecond).String(),
		"place the voters closer to each other: every write waits for a round trip between them")
}

// serveExamine handles methodExamine. It checks whether this node can reach the ports of the calling node.
func (d *Doctor) serveExamine(ctx context.Context, r peer.Request) ([]byte, error) {
	begun := d.opts.Now()
	e := examined{Now: begun.UnixMicro(), Version: d.opts.Version}
	_, err := d.opts.Network.Port().Probe(ctx, r.From.Server)
	e.Peer = fault.Text(err)
	g := d.opts.Network.Gossip()
	unknown := "the other node does not know this one by gossip (server id " + r.From.Server + ")"
	e.UDP, e.TCP = unknown, unknown
	for _, m := range g.Roster().Alive() {
		if network.PeerID(&m) == r.From.Server {
			udp, tcp := g.Reach(ctx, &m)
			e.UDP, e.TCP = fault.Text(udp), fault.Text(tcp)
		}
	}
	e.Spent = d.opts.Now().Sub(begun).Microseconds()
	return json.Marshal(e)
}
