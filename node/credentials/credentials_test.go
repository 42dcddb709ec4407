package credentials_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func TestCredentials_NodeWithoutTokenIsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	token, other := trust.NewToken(), trust.NewToken()
	nodes, _ := nodetest.ThreeSecured(t, func(*node.Config) {}, token)
	if code, body := nodetest.Save(t, nodes[0], "k", "v"); code != 204 {
		t.Fatalf("save: %d %s", code, body)
	}
	s := nodetest.Status(t, nodes[0])
	if s.Security.Nodes != "token" || len(s.Security.Tokens) != 1 || s.Security.Tokens[0] != token.Fingerprint() ||
		time.Until(*s.Security.CertificateEnds) < 23*time.Hour {
		t.Errorf("status: %+v", s.Security)
	}
	seed := nodes[0].Addresses().Gossip
	for name, c := range map[string]struct {
		file string
		want string // in health, status and log
		log  string // in the log
	}{
		"another token": {nodetest.TokenFile(t, "", other), other.Fingerprint(), "cluster token"},
		"no token":      {"", "token", "the same cluster token"},
	} {
		t.Run(name, func(t *testing.T) {
			var log nodetest.Log
			conf := nodetest.Member(t, "x", 0, seed)
			conf.Security.ClusterTokenFile = c.file
			n := nodetest.OpenLogged(t, conf, &log)
			nodetest.Poll(t, func() error {
				code, body, _ := nodetest.Ask(t, n, "GET", "/v1.0/healthz", "")
				issues := nodetest.Status(t, n).Issues
				if code == 204 || !strings.Contains(body, c.want) || len(issues) == 0 ||
					!strings.Contains(issues[0].Reason, c.want) || !log.Has("level=WARN", seed, c.want, c.log) {
					return fmt.Errorf("healthz: %d %s; issues %v; log: %s", code, body, issues, log.String())
				}
				return nil
			})
		})
	}
	for _, m := range nodetest.Status(t, nodes[0]).Groups[0].Servers {
		if m.Node == "x" {
			t.Error("the stranger is a server")
		}
	}
	if code, body := nodetest.Save(t, nodes[1], "k", "w"); code != 204 {
		t.Errorf("the cluster does not go on: %d %s", code, body)
	}
}

// withoutElection runs a scenario in which leadership must not move. The scenario returns the terms before and after.
// If the terms differ but the machine has paused this process for long, withoutElection runs the scenario again.
func withoutElection(t *testing.T, scenario func(t *testing.T) (before, after uint64)) {
	t.Helper()
	const waited, tries = 150 * time.Millisecond, 5 // raft's time-out is 1 s, over several hops
	for n, again := 1, true; again && !t.Failed(); n++ {
		t.Run(fmt.Sprint("try ", n), func(t *testing.T) {
			done, longest := make(chan struct{}), make(chan time.Duration, 1)
			stop := sync.OnceFunc(func() { close(done) })
			t.Cleanup(stop)
			go func() {
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				var most time.Duration
				for last := time.Now(); ; {
					select {
					case <-tick.C:
						now := time.Now()
						most, last = max(most, now.Sub(last)), now
					case <-done:
						longest <- max(most, time.Since(last))
						return
					}
				}
			}()
			before, after := scenario(t)
			stop()
			starved := <-longest
			switch again = after != before && starved > waited && n < tries; {
			case again:
				t.Logf("an election, term %d, then %d, of a process that was kept waiting for %s", before, after,
					starved)
			case after != before:
				t.Errorf("there was an election: term %d, then %d, in each of %d tries; in the last one the "+
					"process was kept waiting for at most %s", before, after, n, starved)
			}
		})
	}
}

// underLoad runs steps while clients put load on every node. It returns the number of successful calls.
func underLoad(t *testing.T, nodes []*node.Node, steps func()) (calls int64) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var count atomic.Int64
	for i, n := range nodes {
		for j := range 2 {
			wg.Go(func() {
				for k := 0; ctx.Err() == nil; k++ {
					key := fmt.Sprintf("load-%d-%d", i, j)
					if code, body := nodetest.Save(t, n, key, fmt.Sprint(k)); code != 204 {
						t.Errorf("save %d at node %d: %d %s", k, i, code, body)
						return
					}
					if code, body, _ := nodetest.Ask(t, nodes[(i+1)%len(nodes)], "GET", "/v1.0/state/statestore/"+key+
						"?consistency=strong", ""); code != 200 || body != fmt.Sprintf("%q", fmt.Sprint(k)) {
						t.Errorf("read %d of node %d at the next: %d %s", k, i, code, body)
						return
					}
					count.Add(2)
				}
			})
		}
	}
	steps()
	stop()
	wg.Wait()
	return count.Load()
}

func TestCredentials_TokenRotationUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	withoutElection(t, exchangeTokens)
}

func exchangeTokens(t *testing.T) (before, after uint64) {
	old, next := trust.NewToken(), trust.NewToken()
	nodes, configs := nodetest.ThreeSecured(t, func(*node.Config) {}, old)
	before = nodetest.Term(t, nodes[nodetest.Leader(t, nodes)])
	calls := underLoad(t, nodes, func() {
		for _, step := range [][]trust.Token{{old, next}, {next, old}, {next}} {
			for i, c := range configs {
				nodetest.TokenFile(t, c.Security.ClusterTokenFile, step...)
				nodetest.Poll(t, func() error {
					if got := nodetest.Status(t, nodes[i]).Security.Tokens; len(got) != len(step) ||
						got[0] != step[0].Fingerprint() {
						return fmt.Errorf("node %d has tokens %v", i, got)
					}
					return nil
				})
				<-time.After(200 * time.Millisecond) // clients put load on nodes with different tokens for this time
			}
		}
	})
	after = nodetest.Term(t, nodes[nodetest.Leader(t, nodes)])
	if calls < 10 {
		t.Errorf("only %d calls", calls)
	}
	late := nodetest.Member(t, "late", 0, nodes[0].Addresses().Gossip)
	late.Security.ClusterTokenFile = nodetest.TokenFile(t, "", next)
	nodetest.Ready(t, nodetest.Open(t, late))
	return before, after
}

func TestCredentials_CertificateRenewalUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	withoutElection(t, renewCertificates)
}

func renewCertificates(t *testing.T) (before, after uint64) {
	token := trust.NewToken()
	nodes, _ := nodetest.ThreeSecured(t, func(c *node.Config) {
		c.Security.Certificates = trust.Timing{Life: 8 * time.Second, Backdate: time.Second}
	}, token)
	before = nodetest.Term(t, nodes[nodetest.Leader(t, nodes)])
	first := *nodetest.Status(t, nodes[0]).Security.CertificateEnds
	calls := underLoad(t, nodes, func() {
		nodetest.Poll(t, func() error {
			if end := *nodetest.Status(t, nodes[0]).Security.CertificateEnds; end.Sub(first) < 8*time.Second {
				return fmt.Errorf("the certificate ends at %v, the first ended at %v", end, first)
			}
			return nil
		})
	})
	if calls < 10 {
		t.Errorf("only %d calls", calls)
	}
	return before, nodetest.Term(t, nodes[nodetest.Leader(t, nodes)])
}

func TestCredentials_UnusableFiles(t *testing.T) {
	token := trust.NewToken()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"a password":        {"correct horse", 0o600, "line 1: this is no cluster token"},
		"nothing":           {"", 0o600, "there is no token in it"},
		"open to everybody": {token.Reveal(), 0o644, "mode 0644"},
		"open to a group":   {token.Reveal(), 0o660, "chmod 600"},
	} {
		conf := nodetest.Config(t)
		conf.Security.ClusterTokenFile = nodetest.TokenFile(t, "")
		if err := os.WriteFile(conf.Security.ClusterTokenFile, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(conf.Security.ClusterTokenFile, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := node.Open(t.Context(), conf, nodetest.Deps(t))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "--cluster-token-file "+conf.Security.ClusterTokenFile) ||
			strings.Contains(err.Error(), "horse") {
			t.Errorf("%s: %v", name, err)
		}
	}
	conf := nodetest.Config(t)
	conf.Cluster.Peer, conf.Cluster.Gossip = nodetest.AnyPort(), nodetest.AnyPort()
	conf.Security.Look = 10 * time.Millisecond
	conf.Security.ClusterTokenFile = nodetest.TokenFile(t, "", token)
	var log nodetest.Log
	n := nodetest.OpenLogged(t, conf, &log)
	if err := os.WriteFile(conf.Security.ClusterTokenFile, []byte("half a tok"), 0o600); err != nil {
		t.Fatal(err)
	}
	nodetest.Poll(t, func() error {
		s := nodetest.Status(t, n)
		if len(s.Issues) != 1 || !strings.Contains(s.Issues[0].Reason, "this is no cluster token") ||
			s.Security.Tokens[0] != token.Fingerprint() {
			return fmt.Errorf("status %+v", s)
		}
		if !log.Has("level=ERROR", "changed credentials are refused") {
			return errors.New("the log does not say it yet")
		}
		return nil
	})
	if strings.Contains(log.String(), "half a tok") ||
		strings.Contains(log.String(), token.Reveal()) {
		t.Errorf("log: %s", log.String())
	}
	if err := os.Remove(conf.Security.ClusterTokenFile); err != nil {
		t.Fatal(err)
	}
	nodetest.Poll(t, func() error {
		if !log.Has("level=WARN", "a credential file was removed") || len(nodetest.Status(t, n).Issues) != 1 {
			return fmt.Errorf("log: %s", log.String())
		}
		return nil
	})
	next := trust.NewToken()
	nodetest.TokenFile(t, conf.Security.ClusterTokenFile, next)
	nodetest.Poll(t, func() error {
		if s := nodetest.Status(t, n); len(s.Issues) != 0 || s.Security.Tokens[0] != next.Fingerprint() {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}

// tap dials connections and records every byte on them.
type tap struct {
	mu    sync.Mutex
	bytes []byte
}

func (p *tap) note(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes = append(p.bytes, b...)
}

func (p *tap) seen(text string) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.bytes), bytes.Contains(p.bytes, []byte(text))
}

func (p *tap) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &tapped{c, p}, nil
}

type tapped struct {
	net.Conn
	tap *tap
}

func (c *tapped) Write(b []byte) (int, error) {
	c.tap.note(b)
	return c.Conn.Write(b)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tap.note(b[:n])
	return n, err
}

func openTapped(t testing.TB, c node.Config, p *tap) *node.Node {
	t.Helper()
	d := nodetest.Deps(t)
	d.Dial = p.dial
	n, err := node.Open(t.Context(), c, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodetest.Close(t, n) })
	return n
}

// The test writes and reads values at both of two nodes, and records all connections between them.
func TestCredentials_TrafficIsEncrypted(t *testing.T) {
	for _, secured := range []bool{false, true} {
		t.Run(fmt.Sprintf("secured=%t", secured), func(t *testing.T) {
			token := trust.NewToken()
			var wire tap
			// long names, because encrypted bytes may contain a short name by chance
			first, second := nodetest.Member(t, "planted-one", 0), nodetest.Member(t, "planted-two", 0)
			if secured {
				first.Security.ClusterTokenFile, second.Security.ClusterTokenFile = nodetest.TokenFile(t, "", token),
					nodetest.TokenFile(t, "", token)
			}
			a := openTapped(t, first, &wire)
			second.Cluster.Join = []string{a.Addresses().Gossip}
			b := openTapped(t, second, &wire)
			nodetest.Ready(t, b)
			nodetest.Voters(t, a, 2)
			for i, n := range []*node.Node{a, b} {
				if code, body := nodetest.Save(t, n, fmt.Sprint("planted-key-", i), "planted-value"); code != 204 {
					t.Fatalf("save: %d %s", code, body)
				}
			}
			if code, body, _ := nodetest.Ask(t, b, "GET", "/v1.0/state/statestore/planted-key-0?consistency=strong",
				""); code != 200 || body != `"planted-value"` {
				t.Fatalf("read: %d %s", code, body)
			}
			for _, word := range []string{"planted-value", "planted-key", "planted-two."} {
				if n, seen := wire.seen(word); seen == secured || n < 5000 {
					t.Errorf("%q on the wire: %t, of %d bytes", word, seen, n)
				}
			}
		})
	}
}
