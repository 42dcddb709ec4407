package membership

import (
	"time"

	"github.com/hashicorp/memberlist"
)

// Timing has the intervals and timeouts of gossip. The zero Timing means LAN. To change single fields, start with the
// result of LAN or Loopback.
type Timing struct {
	ProbeInterval time.Duration // interval at which one member is probed over UDP
	// time for an answer before other members probe and TCP is tried; below ProbeInterval
	ProbeTimeout time.Duration
	// a silent member is suspected for SuspicionMult * max(1, log10 members) * ProbeInterval
	SuspicionMult    int
	SuspicionMaxMult int           // factor by which the suspicion lasts longer until other members confirm it
	GossipInterval   time.Duration // interval at which news is sent
	GossipNodes      int           // number of members, chosen at random, that get the news
	// a message is sent Retransmits * log10(members+1) times; full exchanges deliver what got lost
	Retransmits     int
	GossipToTheDead time.Duration // how long a failed member still gets news, so that it can announce that it is alive
	// interval of full exchanges with one member; longer above 32 members
	PushPullInterval time.Duration
	StreamTimeout    time.Duration // bounds each exchange over TCP, dialling included
	// time for the first byte of an accepted, secured stream; at most StreamTimeout
	FirstByte time.Duration
	JoinRetry time.Duration // first pause between attempts to join; it doubles
	Rejoin    time.Duration // longest pause, and how often a lost member or seed is tried again
	Forget    time.Duration // how long members that failed or left stay in the roster
}

// LAN returns the Timing for nodes in one network. In a test of 50 members on one machine, all members learned of a
// dead member within 2 to 3 s.
func LAN() Timing {
	return Timing{
		ProbeInterval: 300 * time.Millisecond, ProbeTimeout: 150 * time.Millisecond, SuspicionMult: 3,
		SuspicionMaxMult: 3,
		GossipInterval:   200 * time.Millisecond, GossipNodes: 3, Retransmits: 6, GossipToTheDead: 30 * time.Second,
		PushPullInterval: 15 * time.Second,
		StreamTimeout:    5 * time.Second, FirstByte: 2 * time.Second, JoinRetry: 200 * time.Millisecond,
		Rejoin: 10 * time.Second, Forget: 24 * time.Hour,
	}
}

// Loopback returns the Timing for nodes on one machine, and for tests.
func Loopback() Timing {
	return Timing{
		ProbeInterval: 100 * time.Millisecond, ProbeTimeout: 50 * time.Millisecond, SuspicionMult: 3,
		SuspicionMaxMult: 3,
		GossipInterval:   20 * time.Millisecond, GossipNodes: 3, Retransmits: 4, GossipToTheDead: 5 * time.Second,
		PushPullInterval: 2 * time.Second,
		StreamTimeout:    2 * time.Second, FirstByte: 2 * time.Second, JoinRetry: 20 * time.Millisecond,
		Rejoin: time.Second, Forget: time.Hour,
	}
}

// apply copies the timing into the library's configuration.
func (t Timing) apply(c *memberlist.Config) {
	c.ProbeInterval, c.ProbeTimeout = t.ProbeInterval, t.ProbeTimeout
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = t.SuspicionMult, t.SuspicionMaxMult
	c.GossipInterval, c.GossipNodes, c.GossipToTheDeadTime = t.GossipInterval, t.GossipNodes, t.GossipToTheDead
	c.RetransmitMult = t.Retransmits
	c.PushPullInterval, c.TCPTimeout = t.PushPullInterval, t.StreamTimeout
}
