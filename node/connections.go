package node

import (
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	apihttp "github.com/quorate/quorate/api/http"
)

// The HTTP listeners of a node, as metrics and closers name them.
const (
	listenerAPI     = "api"
	listenerMetrics = "metrics"
	listenerAdmin   = "admin socket"
)

const (
	fewConnections   = 256 // of listeners that people and Prometheus use
	leastConnections = 64
)

// connections measure the HTTP listeners of a node; those of one name are taken together.
type connections struct {
	open *prometheus.GaugeVec
	cut  *prometheus.CounterVec
}

func newConnections(reg prometheus.Registerer) connections {
	c := connections{
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_http_connections",
			Help: "Open connections of HTTP listeners."}, []string{"listener"}),
		cut: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_http_connections_cut_total",
			Help: "Connections of HTTP listeners that were closed because there were too many; those without a request go first."}, []string{"listener"}),
	}
	reg.MustRegister(c.open, c.cut)
	return c
}

// mostConnections is the bound of one listener. All of the API together may have half of
// the files that the process may open: the other half is for the store and the cluster,
// which must not fail because clients open connections.
func (n *Node) mostConnections(listener string) int {
	if listener != listenerAPI {
		return fewConnections
	}
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return apihttp.DefaultMaxConnections
	}
	share := l.Cur / 2 / uint64(n.apiListeners())
	return int(min(max(share, leastConnections), apihttp.DefaultMaxConnections))
}

// apiListeners are how many listeners the APIs of all applications have, of either protocol.
func (n *Node) apiListeners() int {
	each := 0
	for i, a := range n.apps() {
		each++
		if _, _, on := n.config.grpcPort(i == 0, a); on {
			each++
		}
	}
	return each * len(n.config.API.Listen)
}
