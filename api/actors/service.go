package actors

import (
	"context"

	"github.com/quorate/quorate/api"
)

// Service calls actors on behalf of one application. It is immutable and safe for concurrent use.
type Service struct {
	app     api.App
	runtime *Runtime
}

// NewService returns the service of app.
func NewService(app api.App, r *Runtime) *Service { return &Service{app: app, runtime: r} }

// Do calls an actor. All errors are *api.Error.
func (s *Service) Do(ctx context.Context, c *Call) (Answer, error) {
	c.Caller.App = s.app
	return s.runtime.Do(ctx, c)
}

// Attach sets the stream over which this node calls the actors of the application. It replaces an earlier stream. The
// node hosts these actors until a.Healthy returns false. Attach does not block.
func (s *Service) Attach(a App) { s.runtime.attach(s.app.ID, a) }
