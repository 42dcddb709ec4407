package http

import "net/http"

// headerForce is the header that requests a shutdown without a grace period.
const headerForce = "Dapr-Force-Shutdown"

// shutdown serves POST /v1.0/shutdown. It sends the answer and then makes the process stop.
func (s *runtimeRoutes) shutdown(p *reply, r *http.Request) error {
	p.Header()["Connection"] = []string{"close"}
	p.empty()
	_ = http.NewResponseController(p.ResponseWriter).Flush() // the answer should go out before the listener ends
	s.stop(header(r, headerForce) == "true")
	return nil
}
