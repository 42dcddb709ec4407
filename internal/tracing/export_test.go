package tracing

import "net/http"

// CollectorClient returns the HTTP client for a collector.
func CollectorClient(env func(string) (string, bool)) (*http.Client, error) {
	return (&Declared{}).collectorClient(env)
}
