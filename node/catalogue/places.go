package catalogue

import (
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
)

// arrivalTime is the assumed maximum time that a starting node needs to learn of other nodes.
const arrivalTime = 2 * time.Second

// arrival returns the time that this node needs after its start to learn of all other nodes. It returns 0 if this node
// does not join other nodes.
func (c *Catalogue) arrival() time.Duration {
	if c.opts.Joins {
		return arrivalTime
	}
	return 0
}

// Places returns the discovery catalogue, which chooses the instances for calls. The catalogue must be open.
func (c *Catalogue) Places() *discovery.Catalogue { return c.known.Load() }

// Knows reports whether an instance of an application is known.
func (c *Catalogue) Knows(app api.App) bool {
	d := c.known.Load()
	return d != nil && len(d.View().Instances(app)) > 0
}
