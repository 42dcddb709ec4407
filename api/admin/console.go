package admin

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api/admin/schema"
)

// ConsolePath is the path that issues links to the web console.
const ConsolePath = "/v1/console"

// Console is the part of Node that creates links for signing in to the web console.
type Console interface {
	// ConsoleLink returns a new link that signs in one browser, once. It returns fault.Unavailable if the node serves
	// no console.
	ConsoleLink(ctx context.Context) (schema.ConsoleLink, error)
}

func (h *handler) console(w http.ResponseWriter, r *http.Request) {
	l, err := h.node.ConsoleLink(r.Context())
	h.answer(w, l, err)
}
