package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
)

// cluster is a fake cluster whose members refuse three saves after each kill.
type cluster struct {
	memory
	killed, restarted, refusals int
}

func (c *cluster) leader(context.Context) (int, error) { return 2, nil }

func (c *cluster) kill(process int) error {
	c.killed++
	c.refusals = 3
	return onlyTheLeader(process)
}

func (c *cluster) restart(process int) error {
	c.restarted++
	return onlyTheLeader(process)
}

func onlyTheLeader(process int) error {
	if process != 2 {
		return fmt.Errorf("process %d does not lead", process)
	}
	return nil
}

func (c *cluster) at(process int) client {
	return &clusterMember{client: &c.memory, of: c, number: process}
}

type clusterMember struct {
	client
	of     *cluster
	number int
}

func (m *clusterMember) save(ctx context.Context, key, value string) error {
	if m.number == 2 {
		return errors.New("a save at the killed process")
	}
	if m.of.refusals > 0 {
		m.of.refusals--
		return errors.New("no leader")
	}
	return m.client.save(ctx, key, value)
}

func TestFailover_CountsUntilASaveSucceeds(t *testing.T) {
	c := &cluster{memory: memory{values: map[string]string{}}}
	var out strings.Builder
	if err := printFailover(t.Context(), &settings{kills: 3}, &out, []store{c}); err != nil {
		t.Fatal(err)
	}
	if c.killed != 3 || c.restarted != 3 || c.refusals != 0 {
		t.Errorf("%d kills, %d restarts, %d refusals left", c.killed, c.restarted, c.refusals)
	}
	if got := c.values["failover"]; got != "after 3" {
		t.Errorf("the first save that succeeded is %q, want the fourth", got)
	}
	if !strings.Contains(out.String(), "| memory | 3 | ") || strings.Contains(out.String(), "goal") {
		t.Errorf("unexpected output:\n%s", &out)
	}
	if got, want := exceeded(1501*time.Millisecond, failoverGoal), ", above the goal of 1.5s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFailover_NamesASystemWithoutLeader(t *testing.T) {
	m := &memory{values: map[string]string{}}
	err := printFailover(t.Context(), &settings{kills: 1}, &strings.Builder{}, []store{m})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("%v", err)
	}
}

func TestQuorateLeader_WantsAllCaughtUp(t *testing.T) {
	for _, c := range []struct{ status, fails string }{
		{`{"groups":[{"leader":"n3","writes":true,"servers":[{"node":"n1","lag":0},{"node":"n3"}]}]}`, ""},
		{`{"groups":[{"leader":"n3","writes":true,"servers":[{"node":"n1","lag":2}]}]}`, "n1 is 2 entries behind"},
		{`{"groups":[{"leader":"","writes":false}]}`, "no leader"},
		{`{"groups":[{"leader":"n3","writes":false}]}`, "no leader"},
		{`{}`, "no leader"},
	} {
		var status schema.NodeStatus
		if err := json.Unmarshal([]byte(c.status), &status); err != nil {
			t.Fatal(err)
		}
		got, err := quorateLeader(status)
		switch {
		case c.fails == "" && (err != nil || got != 2):
			t.Errorf("%s: %d, %v", c.status, got, err)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
			t.Errorf("%s: %v, want an error with %q", c.status, err, c.fails)
		}
	}
}

func TestHandler_ReturnsTheSavedValue(t *testing.T) {
	server := httptest.NewServer(handlerRoutes())
	defer server.Close()
	h := &handler{processes: &processes{}, address: hostPort(server.URL)}
	value := strings.Repeat("v", 256)
	if err := fill(t.Context(), h, 2, value); err != nil {
		t.Fatal(err)
	}
	var got figures
	if err := load(t.Context(), &got, h, eventualRead, 2, 2, value, time.Millisecond); err != nil || got.count == 0 {
		t.Errorf("%d reads, %v", got.count, err)
	}
}
