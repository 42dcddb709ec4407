package catalogue

import (
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
)

// arrivalTime is the time after which a starting node is assumed to know all other nodes.
const arrivalTime = 2 * time.Second

// arrival returns how long after its start this node is assumed to know all other nodes. It returns 0 if this node
// joins no other nodes.
func (c *Catalogue) arrival() time.Duration {
	if c.opts.Joins {
		return arrivalTime
	}
	return 0
}

// Places returns the catalogue of package discovery, which chooses the instance for each call. Open must have been
// called.
func (c *Catalogue) Places() *discovery.Catalogue { return c.known.Load() }

// Knows reports whether an instance of an application is known.
func (c *Catalogue) Knows(app api.App) bool {
	d := c.known.Load()
	return d != nil && len(d.View().Instances(app)) > 0
}
