package http

import (
	_ "embed" // the description is a file of its own
	"net/http"
)

// openAPI describes every endpoint of routes; a test holds the two together.
//
//go:embed openapi.json
var openAPI []byte

// getOpenAPI serves GET /openapi.json.
func (f *Face) getOpenAPI(p *reply, _ *http.Request) error {
	p.send(http.StatusOK, valueJSON, openAPI)
	return nil
}
