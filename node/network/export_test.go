package network

import "net/netip"

// MetricsAddr exports metricsAddr for tests.
func MetricsAddr(listener string, advertised netip.Addr) string {
	return metricsAddr(listener, advertised)
}
