package membership_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/pending"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/membership"
)

// secure returns options that secure the gossip of a node with tokens, and the keeper of these tokens.
func secure(t testing.TB, o membership.Options, tokens ...trust.Token) (membership.Options, *trust.Keeper) {
	t.Helper()
	k, err := trust.NewKeeper(trust.Material{Tokens: tokens}, trust.Timing{}, time.Now)
	must(t, err)
	_, err = k.Identify(trust.Identity{Node: o.Facts.NodeID, Server: o.Facts.ServerID})
	must(t, err)
	o.SecretKeys, o.TLS = k.Keys(), func() (server, client *tls.Config) {
		return k.Server("gossip"), k.Client("gossip")
	}
	return o, k
}

func with(o membership.Options, _ *trust.Keeper) membership.Options { return o }

func TestSecured_NodesWithSameTokenJoin(t *testing.T) {
	token := trust.NewToken()
	first := open(t, with(secure(t, options(facts("n1")), token)))
	second := open(t, with(secure(t, options(facts("n2"), first), token)))
	must(t, second.Joined(t.Context()))
	third := open(t, with(secure(t, options(facts("n3"), first), token)))
	for _, g := range []*membership.Gossip{first, second, third} {
		sees(t, g, "n1 alive, n2 alive, n3 alive")
	}
	must(t, third.Leave(t.Context()))
	sees(t, first, "n1 alive, n2 alive, n3 left")
}

func TestSecured_OtherTokenIsRefusedAndLogged(t *testing.T) {
	token, other := trust.NewToken(), trust.NewToken()
	for name, c := range map[string]struct {
		first, second []trust.Token // tokens of n1, and of n2, which joins; none = not secured
		told          string        // part of the error of Joined of n2; empty = no error
		log           string        // text in the log of n2
		log1          string        // text in the log of n1
		reason        string        // counted at n1
	}{
		"another token": {[]trust.Token{token}, []trust.Token{other}, "this node accepts " + other.Fingerprint(),
			"cluster token", "does not accept this node's certificate", "tls"},
		"a token too many": {[]trust.Token{token}, []trust.Token{other, token},
			"does not accept this node's certificate", "cluster tokens differ", other.Fingerprint(), "authority"},
		"no token":         {[]trust.Token{token}, nil, "", "cluster token", "is not secured", "plain"},
		"a token, n1 none": {nil, []trust.Token{token}, "is not", "--cluster-token-file", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var here, there record
			o1 := options(facts("n1"))
			if c.first != nil {
				o1, _ = secure(t, o1, c.first...)
			}
			o1.Logger = logTo(&there)
			first := open(t, o1)
			o2 := options(facts("n2"), first)
			if c.second != nil {
				o2, _ = secure(t, o2, c.second...)
			}
			o2.Logger = logTo(&here)
			second := open(t, o2)
			if c.told != "" {
				if err := second.Joined(t.Context()); err == nil || !strings.Contains(fault.Text(err), c.told) {
					t.Errorf("the error of n2 is: %v", err)
				}
			}
			until(t, "n2 does not log why", func() bool { return here.count("no seed can be joined", c.log) == 1 })
			if c.log1 != "" {
				until(t, "n1 does not log why", func() bool {
					return there.count("gossip is refused", "127.0.0.1", c.log1) == 1
				})
				until(t, "n1 does not count it", func() bool {
					return metric(t, o1, "quorate_gossip_refused_total", c.reason) > 0
				})
			}
			if got := view(first.Roster()) + "; " + view(second.Roster()); got != "n1 alive; n2 alive" {
				t.Errorf("they see %s", got)
			}
		})
	}
}

func TestSecured_KeysAndTLSAreBothRequired(t *testing.T) {
	o := options(facts("n1"))
	o.SecretKeys = [][]byte{key(1)}
	if _, err := membership.Open(t.Context(), o); !fault.Is(err, fault.Invalid) {
		t.Errorf("keys alone: %v", err)
	}
	o, _ = secure(t, options(facts("n1")), trust.NewToken())
	o.SecretKeys = [][]byte{[]byte("short")}
	if _, err := membership.Open(t.Context(), o); !fault.Is(err, fault.Invalid) {
		t.Errorf("a short key: %v", err)
	}
	if err := open(t, options(facts("n2"))).Rekey([][]byte{key(1)}); !fault.Is(err, fault.Invalid) {
		t.Errorf("keys for a node without: %v", err)
	}
}

// Tokens are rotated on one node after the other. During the rotation every member sees every other, and news
// arrives.
func TestSecured_TokenRotationKeepsMembers(t *testing.T) {
	old, next := trust.NewToken(), trust.NewToken()
	var all []*membership.Gossip
	var keepers []*trust.Keeper
	var logs [3]record
	for i, id := range []string{"n1", "n2", "n3"} {
		o, k := secure(t, options(facts(id), all[:min(i, 1)]...), old)
		o.Logger = logTo(&logs[i])
		suspectLong(&o)
		all, keepers = append(all, open(t, o)), append(keepers, k)
	}
	for _, g := range all {
		sees(t, g, "n1 alive, n2 alive, n3 alive")
	}
	leads := uint32(0)
	for _, step := range [][]trust.Token{{old, next}, {next, old}, {next}} {
		for i, k := range keepers {
			must(t, k.Replace(trust.Material{Tokens: step}))
			must(t, all[i].Rekey(k.Keys()))
			leads++
			must(t, all[i].UpdateFacts(func(f *membership.Facts) { f.Leads = leads }))
			for _, g := range all {
				until(t, "news is lost", func() bool {
					m, _ := g.Roster().Node([]string{"n1", "n2", "n3"}[i])
					return m.Leads == leads
				})
			}
		}
	}
	fourth := open(t, with(secure(t, options(facts("n4"), all[0]), next)))
	for _, g := range append(all, fourth) {
		sees(t, g, "n1 alive, n2 alive, n3 alive, n4 alive")
	}
	for i := range logs {
		if logs[i].count("member failed") > 0 {
			t.Errorf("a member was declared dead: %s", logs[i].String())
		}
	}
}

func TestSecured_TrafficIsEncrypted(t *testing.T) {
	token := trust.NewToken()
	f := facts("planted-node-name")
	f.Version = "planted-version"
	first := open(t, with(secure(t, options(facts("n1")), token)))
	o, _ := secure(t, options(f, first), token)
	second, tap, err := membership.OpenTapped(o)
	must(t, err)
	defer func() { must(t, second.Close()) }()
	sees(t, first, "n1 alive, planted-node-name alive")
	until(t, "little was sent", func() bool { return len(tap.Bytes()) > 20_000 })
	for _, word := range []string{"planted", "n1.d1", "test", token.Reveal(), "Node", "127.0.0.1:7947"} {
		if bytes.Contains(tap.Bytes(), []byte(word)) {
			t.Errorf("%q can be read on the wire", word)
		}
	}
}

func TestSecured_ReplayIsRefused(t *testing.T) {
	token := trust.NewToken()
	f := facts("n1")
	o1, _ := secure(t, options(f), token)
	first, tap, err := membership.OpenTapped(o1)
	must(t, err)
	at := first.Addr()
	second := open(t, with(secure(t, options(facts("n2"), first), token)))
	sees(t, first, "n1 alive, n2 alive")
	until(t, "few packets came", func() bool { return len(tap.Packets()) > 20 })
	must(t, second.Leave(t.Context()))
	must(t, second.Close())
	sees(t, first, "n1 alive, n2 left")

	recorded := tap.Packets()
	before := first.Roster().Members()
	send(t, at.String(), recorded)
	until(t, "they are not counted", func() bool {
		// the network of one machine loses nothing
		return metric(t, o1, "quorate_gossip_refused_total", "replayed") >= float64(len(recorded))
	})
	if after := first.Roster().Members(); len(after) != 2 || after[1] != before[1] {
		t.Errorf("the replay changed %+v to %+v", before, after)
	}
	must(t, first.Close())

	// The next incarnation of n1, at the same address, gets the packets for the previous one.
	o, _ := secure(t, options(facts("n1")), token)
	o.Port = at.Port()
	again := open(t, o)
	send(t, at.String(), recorded)
	until(t, "they are not counted", func() bool {
		return metric(t, o, "quorate_gossip_refused_total", "stale") >= float64(len(recorded))
	})
	if got := view(again.Roster()); got != "n1 alive" {
		t.Errorf("a replay brought back %s", got)
	}
}

// send sends packets again, from an address of its own.
func send(t testing.TB, to string, packets [][]byte) {
	t.Helper()
	c, err := net.Dial("udp", to) //nolint:noctx // packets
	must(t, err)
	defer c.Close()
	for _, p := range packets {
		_, err := c.Write(p)
		must(t, err)
	}
}

func TestSecured_RawBytesAreRefused(t *testing.T) {
	var log record
	o, _ := secure(t, options(facts("n1")), trust.NewToken())
	o.Logger = logTo(&log)
	g := open(t, o)
	send(t, g.Addr().String(), [][]byte{[]byte("hello"), bytes.Repeat([]byte{0xC7}, 100)})
	c, err := net.Dial("tcp", g.Addr().String()) //nolint:noctx // to ourselves
	must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	must(t, err)
	if answer, _ := io.ReadAll(c); len(answer) > 16 {
		t.Errorf("it answers %q", answer)
	}
	for _, reason := range []string{"plain", "unknown_key"} {
		until(t, reason+" is not counted", func() bool {
			return metric(t, o, "quorate_gossip_refused_total", reason) >= 1
		})
	}
	until(t, "the connection is not named", func() bool {
		return log.count("gossip connection from 127.0.0.1:", "is refused") == 1
	})
}

func TestSecured_SilentConnectionsDoNotBlockJoin(t *testing.T) {
	token := trust.NewToken()
	var log record
	o, _ := secure(t, options(facts("n1")), token)
	o.Logger = logTo(&log)
	o.Timing.StreamTimeout, o.Timing.FirstByte = patience, patience // they are not closed for their silence
	first := open(t, o)
	for range 400 {
		c, err := net.Dial("tcp", first.Addr().String()) //nolint:noctx // to ourselves
		must(t, err)
		defer c.Close()
	}
	second := open(t, with(secure(t, options(facts("n2"), first), token)))
	must(t, second.Joined(t.Context()))
	sees(t, first, "n1 alive, n2 alive")
	until(t, "the oldest are not counted", func() bool {
		return metric(t, o, "quorate_gossip_refused_total", "busy") >= 400-pending.DefaultPerSource
	})
	until(t, "the address is not logged", func() bool {
		return log.count("gossip is refused", "reason=busy", "127.0.0.1", "firewall") == 1
	})
}

func TestSecured_SilentConnectionIsClosed(t *testing.T) {
	o, _ := secure(t, options(facts("n1")), trust.NewToken())
	o.Timing.StreamTimeout, o.Timing.FirstByte = patience, 50*time.Millisecond
	g := open(t, o)
	c, err := net.Dial("tcp", g.Addr().String()) //nolint:noctx // to ourselves
	must(t, err)
	defer c.Close()
	must(t, c.SetReadDeadline(time.Now().Add(patience/2)))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("it is answered with %v", err)
	}
	until(t, "it is not counted", func() bool { return metric(t, o, "quorate_gossip_refused_total", "silent") == 1 })
}

func TestSecured_SeedClosingDuringHandshakeIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // to ourselves
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	o, _ := secure(t, options(facts("n2")), trust.NewToken())
	at := netip.MustParseAddrPort(l.Addr().String())
	o.Seeds = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{at}, nil }
	g := open(t, o)
	if err := g.Joined(t.Context()); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Text(err), "closed the connection during the handshake") {
		t.Errorf("Joined returned %v", err)
	}
	until(t, "Trouble does not say so", func() bool {
		err := g.Trouble()
		return err != nil && strings.Contains(fault.Text(err), "too many unfinished connections") &&
			strings.Contains(fault.Text(err), "--cluster-token-file")
	})
}
