package deploy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// long skips a test that takes minutes.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("QUORATE_CONTAINERS") == "" {
		t.Skip("it takes minutes: make containers runs it (QUORATE_CONTAINERS=1)")
	}
}

const apiToken = "a-token-of-this-test"

// open returns the flags that let clients outside the container use the API of a server. Servers in the compose file
// listen on loopback, because applications use sidecars.
func open() []string {
	return []string{"-p", "127.0.0.1::3500", "-e", "QUORATE_LISTEN_ADDRESS=0.0.0.0", "-e", "DAPR_API_TOKEN=" + apiToken}
}

func (l *lab) apis(servers []string) (out []string) {
	l.t.Helper()
	for _, s := range servers {
		out = append(out, l.url(s, "3500"))
	}
	return out
}

// nodeStatus is the part of quorate status that the tests use.
type nodeStatus struct {
	Node   struct{ ID, Version string }
	Groups []struct {
		Leader  string
		Servers []struct {
			Node  string
			Voter bool
		}
	}
}

func (l *lab) status(service string) (s nodeStatus, err error) {
	out, err := l.docker("exec", l.name(service), "/quorate", "status", "--json")
	if err != nil {
		return s, errors.New(out)
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return s, fmt.Errorf("%w: %s", err, out)
	}
	return s, nil
}

// leader waits until the first group has a leader, and returns it.
func (l *lab) leader(servers []string) (leader string) {
	l.t.Helper()
	l.eventually("there is a leader", patience, func() error {
		s, err := l.status(servers[0])
		if err == nil && (len(s.Groups) == 0 || !slices.Contains(servers, s.Groups[0].Leader)) {
			err = fmt.Errorf("%+v", s)
		}
		if err == nil {
			leader = s.Groups[0].Leader
		}
		return err
	})
	return leader
}

// goesOn waits until the clients have made the given number of further writes.
func (l *lab) goesOn(clients *ledger, when string, more int) {
	l.t.Helper()
	want := clients.written() + more
	l.eventually("writes go on "+when, patience, func() error {
		if have := clients.written(); have < want {
			return fmt.Errorf("%d of %d: %v", have, want, clients)
		}
		return nil
	})
}

// TestContainers_LoseNoAcknowledgedWrite disconnects the leader, replaces a server that was lost
// with its disk, and moves every node to a rebuilt image. Meanwhile clients write with strong
// consistency, and switch to another server after a failure.
func TestContainers_LoseNoAcknowledgedWrite(t *testing.T) {
	long(t)
	t.Parallel()
	l := engine(t)
	l.build()
	servers, sidecars := l.start(open()...)
	clients := startLedger(t, 4, apiToken, l.apis(servers))
	l.goesOn(clients, "while all is well", 100)
	step := func(name string, f func()) {
		t.Helper()
		begin := time.Now()
		f()
		clients.move(l.apis(servers))
		t.Logf("%s: %v; %v", name, time.Since(begin).Round(100*time.Millisecond), clients)
	}

	step("the leader is cut off", func() {
		leader := l.leader(servers)
		l.cut(leader)
		l.goesOn(clients, "without the leader", 100)
		l.plug(leader)
		l.eventually(leader+" is back", patience, l.health("--placed", servers...))
	})
	step("a server is lost with its disk", func() {
		lost := l.leader(servers)
		l.must("rm", "-f", l.name(lost))
		l.must("volume", "rm", l.name(lost))
		l.goesOn(clients, "without "+lost, 100)
		l.up(lost, open()...)
		l.eventually("its successor votes", patience, l.health("--placed", servers...))
		l.eventually("the old disk has no vote", patience, func() error { return l.threeVoters(servers) })
	})
	step("every node moves to a rebuilt image", func() {
		l.images["QUORATE_IMAGE"] = l.name("rebuilt")
		l.make("image", "IMAGE="+l.name("rebuilt"), "VERSION=rebuilt")
		for _, s := range servers {
			l.down(s)
			l.goesOn(clients, "while "+s+" is away", 20)
			l.up(s, open()...)
			l.eventually(s+" is back", patience, l.health("--placed", s))
			clients.move(l.apis(servers))
		}
		for _, s := range sidecars {
			l.down(s)
			l.up(s)
		}
		l.eventually("all are healthy", patience, l.healthy(append(slices.Clone(servers), sidecars...)...))
	})
	for _, s := range append(slices.Clone(servers), sidecars...) {
		if got, err := l.status(s); err != nil || got.Node.Version != "rebuilt" {
			t.Errorf("%s: %+v, %v", s, got.Node, err)
		}
	}
	clients.end()
	clients.check(t)
	t.Log(clients)
}

// threeVoters checks the Raft configuration that a server knows.
func (l *lab) threeVoters(servers []string) error {
	s, err := l.status(servers[0])
	if err != nil {
		return err
	}
	var voters []string
	for _, one := range s.Groups[0].Servers {
		if one.Voter {
			voters = append(voters, one.Node)
		}
	}
	slices.Sort(voters)
	if !slices.Equal(voters, servers) || len(s.Groups[0].Servers) != 3 {
		return fmt.Errorf("voters are %q, of %+v", voters, s.Groups[0].Servers)
	}
	return nil
}
