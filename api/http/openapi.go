package http

import (
	_ "embed" // for openAPI
	"net/http"
)

// openAPI describes every route. A test checks that the description and the routes agree.
//
//go:embed openapi.json
var openAPI []byte

// OpenAPI returns the OpenAPI 3 description of the HTTP API as JSON. The caller must not modify it.
func OpenAPI() []byte { return openAPI }

// getOpenAPI serves GET /openapi.json.
func (s *runtimeRoutes) getOpenAPI(p *reply, _ *http.Request) error {
	p.respond(http.StatusOK, valueJSON, openAPI)
	return nil
}
