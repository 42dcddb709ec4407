package discovery

import (
	"context"
	"time"

	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
)

// ChannelNumber is the number of the catalogue among the channels of the gossip. It never
// changes.
const ChannelNumber = 1

// Method is the name of Answer among the methods of the peer port. It never changes.
const Method = "discovery.ask"

// askTime bounds one question to another node.
const askTime = 5 * time.Second

// Broadcasts is a method of a channel of the gossip.
func (c *Catalogue) Broadcasts(overhead, limit int) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Broadcasts(overhead, limit)
}

// Notify is a method of a channel of the gossip.
func (c *Catalogue) Notify(msg []byte) {
	c.mu.Lock()
	c.machine.Receive(c.opts.Now(), msg)
	c.publish()
	c.mu.Unlock()
	c.stir()
}

// LocalState is a method of a channel of the gossip.
func (c *Catalogue) LocalState(bool) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Digest()
}

// MergeState is a method of a channel of the gossip.
func (c *Catalogue) MergeState(state []byte, _ bool) {
	c.mu.Lock()
	err := c.machine.Compare(c.opts.Now(), state)
	c.mu.Unlock()
	if err != nil {
		c.opts.Logger.Debug("another node's catalogue is left out", "error", err)
	}
	c.stir()
}

// Answer serves a question of another node's catalogue.
func (c *Catalogue) Answer(_ context.Context, question []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Answer(question)
}

// stir has the loop look for what is to be pulled.
func (c *Catalogue) stir() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// weighInterval is how often the loads of this node's applications are looked at.
const weighInterval = time.Second

// run is the loop.
func (c *Catalogue) run(ctx context.Context) {
	tick, weigh := time.NewTicker(records.TickInterval), time.NewTicker(weighInterval)
	defer tick.Stop()
	defer weigh.Stop()
	for {
		select {
		case <-tick.C:
			c.mu.Lock()
			c.machine.Tick(c.opts.Now())
			c.publish()
			c.mu.Unlock()
		case <-weigh.C:
			c.mu.Lock()
			c.weigh()
			c.publish()
			c.mu.Unlock()
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		for _, p := range c.due() {
			c.tasks.Go(func() { c.pull(ctx, p) })
		}
	}
}

func (c *Catalogue) due() []records.Pull {
	if c.opts.Ask == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Pulls(c.opts.Now())
}

// pull asks one question.
func (c *Catalogue) pull(ctx context.Context, p records.Pull) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	answer, err := c.opts.Ask(ctx, p.Peer, p.Request)
	c.mu.Lock()
	bad := c.machine.Pulled(c.opts.Now(), p, answer, err)
	c.publish()
	c.mu.Unlock()
	c.metrics.pulled(p.What(), bad)
	if bad != nil && ctx.Err() == nil {
		level := c.opts.Logger.Debug
		if fault.Is(bad, fault.Unimplemented) {
			level = c.opts.Logger.Warn
		}
		level("another node's records of applications could not be pulled", "peer", p.Peer, "what", p.What(), "error", bad)
	}
	c.stir()
}
