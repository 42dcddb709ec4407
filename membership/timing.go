package membership

import (
	"time"

	"github.com/hashicorp/memberlist"
)

// Timing sets how fast gossip is. Use LAN or Loopback and change single fields; the zero
// Timing is LAN.
type Timing struct {
	ProbeInterval    time.Duration // each interval one member is probed by UDP
	ProbeTimeout     time.Duration // how long an answer may take before others are asked to probe, and TCP is tried; below ProbeInterval
	SuspicionMult    int           // a silent member is suspected for SuspicionMult * max(1, log10 members) * ProbeInterval
	SuspicionMaxMult int           // up to this many times that while nobody else confirms the suspicion
	GossipInterval   time.Duration // each interval news is sent
	GossipNodes      int           // to this many members, chosen at random
	Retransmits      int           // each piece of news is sent Retransmits * log10(members+1) times; what all copies miss, an exchange brings
	GossipToTheDead  time.Duration // how long a failed member still gets news, so that it can object
	PushPullInterval time.Duration // each interval everything is exchanged with one member; stretched above 32 members
	StreamTimeout    time.Duration // bounds each exchange over TCP, dialling included
	JoinRetry        time.Duration // first pause between attempts to join; it doubles
	Rejoin           time.Duration // longest pause, and how often a lost member or seed is tried again
	Forget           time.Duration // how long members that failed or left stay in the roster
}

// LAN is for nodes within one network. Measured with 50 members on one machine, a dead
// member is known to all after 2 to 3 s.
func LAN() Timing {
	return Timing{
		ProbeInterval: 300 * time.Millisecond, ProbeTimeout: 150 * time.Millisecond, SuspicionMult: 3, SuspicionMaxMult: 3,
		GossipInterval: 200 * time.Millisecond, GossipNodes: 3, Retransmits: 6, GossipToTheDead: 30 * time.Second, PushPullInterval: 15 * time.Second,
		StreamTimeout: 5 * time.Second, JoinRetry: 200 * time.Millisecond, Rejoin: 10 * time.Second, Forget: 24 * time.Hour,
	}
}

// Loopback is for nodes on one machine, and for tests.
func Loopback() Timing {
	return Timing{
		ProbeInterval: 100 * time.Millisecond, ProbeTimeout: 50 * time.Millisecond, SuspicionMult: 3, SuspicionMaxMult: 3,
		GossipInterval: 20 * time.Millisecond, GossipNodes: 3, Retransmits: 4, GossipToTheDead: 5 * time.Second, PushPullInterval: 2 * time.Second,
		StreamTimeout: 2 * time.Second, JoinRetry: 20 * time.Millisecond, Rejoin: time.Second, Forget: time.Hour,
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
