package components

import "github.com/quorate/quorate/component/pubsub"

// PubSub returns the publish/subscribe component of a name.
func (c *Components) PubSub(name string) (*pubsub.Instance, bool) {
	if s := c.set.Load(); s != nil {
		return s.PubSub(name)
	}
	return nil, false
}

// PubSubs returns all publish/subscribe components.
func (c *Components) PubSubs() []*pubsub.Instance {
	if s := c.set.Load(); s != nil {
		return s.PubSubs()
	}
	return nil
}
