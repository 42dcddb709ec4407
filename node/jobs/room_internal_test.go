package jobs

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/testutil"
)

// Ticks in progress at an unhealthy instance do not reduce the room of the other instances.
func TestJobs_RoomCountsTicksAtUnhealthyInstancesInAddition(t *testing.T) {
	app := api.App{ID: "shop"}
	for _, c := range []struct {
		name     string
		a, b     bool // healthy
		underWay map[string]int
		want     int
	}{
		{"idle", true, true, nil, 64},
		{"healthy and busy", true, true, map[string]int{"a": 32, "b": 5}, 64},
		{"one unhealthy and idle", false, true, nil, 32},
		{"one unhealthy and hung", false, true, map[string]int{"a": 32, "b": 5}, 64},
		{"one gone and hung", false, true, map[string]int{"a": 3, "gone": 7}, 42},
		{"all unhealthy", false, false, map[string]int{"a": 32}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &Jobs{underWay: map[discovery.Instance]int{}}
			for node, n := range c.underWay {
				j.underWay[discovery.Instance{App: app, Node: node, Boot: "1"}] = n
			}
			j.underWay[discovery.Instance{App: api.App{ID: "other"}, Node: "a", Boot: "1"}] = 9
			j.open.Store(&parts{places: catalogue(t, app, map[string]bool{"a": c.a, "b": c.b})})
			if got := j.Room(home(app)); got != c.want {
				t.Errorf("room for %d ticks, want %d", got, c.want)
			}
		})
	}
}

// catalogue returns the catalogue of a node without applications. healthy has the nodes that serve app.
func catalogue(t *testing.T, app api.App, healthy map[string]bool) *discovery.Catalogue {
	t.Helper()
	c, err := discovery.New(discovery.Options{Self: discovery.Incarnation{Node: "self", Boot: "1"},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Registerer: prometheus.NewRegistry()})
	testutil.Must(t, err)
	var members []discovery.Member
	for node := range healthy {
		members = append(members, discovery.Member{Incarnation: discovery.Incarnation{Node: node, Boot: "1"},
			Peer: node, State: records.Alive})
	}
	c.Members(members)
	for node, is := range healthy {
		m := records.New(records.Options{Self: discovery.Incarnation{Node: node, Boot: "1"}})
		testutil.Must(t, m.Serve([]records.Entry{{App: app, Protocol: records.HTTP, Healthy: is}}))
		m.Tick(time.Now())
		for _, message := range m.Broadcasts(0, 1400) {
			c.Notify(message)
		}
	}
	return c
}
