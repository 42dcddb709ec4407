package http

import (
	_ "embed" // for openAPI
	"net/http"
)

// openAPI describes every endpoint of routes. A test checks that both agree.
//
//go:embed openapi.json
var openAPI []byte

// OpenAPI returns the OpenAPI 3 description of the HTTP API as JSON. The caller must not modify it.
func OpenAPI() []byte { return openAPI }

// getOpenAPI serves GET /openapi.json.
func (f *Face) getOpenAPI(p *reply, _ *http.Request) error {
	p.send(http.StatusOK, valueJSON, openAPI)
	return nil
}
