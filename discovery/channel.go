package discovery

import (
	"context"
	"time"

	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
)

// ChannelNumber is the number of the catalogue's gossip channel. It must be the same on all nodes, so it must not
// change.
const ChannelNumber = 1

// Method is the name under which the peer port serves Catalogue.Answer. It must not change.
const Method = "discovery.ask"

// askTime is the timeout of one question to another node.
const askTime = 5 * time.Second

// Broadcasts implements membership.Channel.
func (c *Catalogue) Broadcasts(overhead, limit int) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Broadcasts(overhead, limit)
}

// Notify implements membership.Channel.
func (c *Catalogue) Notify(msg []byte) {
	c.mu.Lock()
	c.machine.Receive(c.opts.Now(), msg)
	c.publish()
	c.mu.Unlock()
	c.wakeLoop()
}

// LocalState implements membership.Channel.
func (c *Catalogue) LocalState(bool) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Digest()
}

// MergeState implements membership.Channel.
func (c *Catalogue) MergeState(state []byte, _ bool) {
	c.mu.Lock()
	err := c.machine.Compare(c.opts.Now(), state)
	c.mu.Unlock()
	if err != nil {
		c.opts.Logger.Debug("another node's catalogue is ignored", "error", err)
	}
	c.wakeLoop()
}

// Answer answers a question that the catalogue of another node has sent with Options.Ask.
func (c *Catalogue) Answer(_ context.Context, question []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Answer(question)
}

// wakeLoop wakes run, which then checks which records must be pulled.
func (c *Catalogue) wakeLoop() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// weighInterval is how often this node updates the loads of its applications.
const weighInterval = time.Second

// run is the loop of the catalogue. Until ctx ends, it updates the loads of this node's applications, calls
// Machine.Tick, and starts pulls.
func (c *Catalogue) run(ctx context.Context) {
	var ticked, weighed time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timely := false
		select {
		case <-timer.C:
			timely = true
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		now := c.opts.Now()
		c.mu.Lock()
		if now.Sub(weighed) >= weighInterval {
			weighed = now
			c.weigh()
		}
		if now.Sub(ticked) >= records.TickInterval && (timely || !c.machine.Quiet()) {
			ticked = now
			c.machine.Tick(now)
		}
		c.publish()
		wait := records.TickInterval
		if c.machine.Quiet() {
			wait = weighInterval - now.Sub(ticked)
		}
		c.mu.Unlock()
		timer.Reset(wait)
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

// pull sends one question and processes the answer.
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
		level("another node's records of applications could not be pulled", "peer", p.Peer, "what", p.What(), "error",
			bad)
	}
	c.wakeLoop()
}
