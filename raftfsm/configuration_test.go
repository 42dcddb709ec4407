package raftfsm_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/configurationtest"
	"github.com/quorate/quorate/component/configuration/records"
	"github.com/quorate/quorate/raftfsm"
)

func configstore(t *testing.T, h *raftfsm.Host, name string) *records.Store {
	t.Helper()
	s := records.New(records.Options{Backing: h.Store("", name), Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConfiguration_Conformance(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	side, _ := c.sidecar("side")
	lead := c.leader()
	for name, h := range map[string]*raftfsm.Host{"leader": lead, "follower": c.others(lead)[0], "sidecar": side} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			configurationtest.Run(t, configurationtest.Traits{Metadata: true, EmptyValues: true, Writes: true},
				func(t *testing.T) (configuration.Store, configurationtest.Subject) {
					s := configstore(t, h, fmt.Sprint(name, n.Add(1)))
					return s, configurationtest.Written{Writer: s}
				})
		})
	}
}

// Subscriptions on two servers and a sidecar see the newest value of each key, although the leader stops. No key goes
// back to an older value.
func TestConfiguration_SubscriptionSurvivesLossOfServers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	side, _ := c.sidecar("side")
	lead := c.leader()
	var all []*configurationtest.Seen
	for _, h := range append(c.others(lead), side) {
		all = append(all, configurationtest.Listen(t, configstore(t, h, "config")))
	}
	writer := configstore(t, side, "config")
	set := func(key string, value int) {
		t.Helper()
		eventually(t, func() error {
			_, err := writer.Write(within(t, 10*time.Second), configuration.WriteRequest{
				Changes: []configuration.Change{{Item: configuration.Item{Key: key, Value: strconv.Itoa(value)}}}})
			return err
		})
	}
	for i := range 20 {
		set("before", i)
	}
	for _, seen := range all {
		seen.Value(t, "before", "19")
	}
	set("between", 1)
	c.stop(lead)
	for i := range 20 {
		set("after", i)
	}
	for _, seen := range all {
		seen.Value(t, "between", "1")
		seen.Value(t, "after", "19")
		inOrder(t, seen)
	}
}

// inOrder checks that no key went back.
func inOrder(t *testing.T, seen *configurationtest.Seen) {
	t.Helper()
	last := map[string]int{}
	for _, i := range seen.All {
		n, err := strconv.Atoi(i.Version)
		if err != nil || n <= last[i.Key] {
			t.Errorf("%s: version %s after %d", i.Key, i.Version, last[i.Key])
		}
		last[i.Key] = n
	}
}
