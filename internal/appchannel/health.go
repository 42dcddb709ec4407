package appchannel

import (
	"context"
	"net"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// portInterval is the time between checks of a closed port.
const portInterval = 100 * time.Millisecond

// watch tracks whether the application is healthy, until ctx ends. First it waits until the port of the application is
// open. Then it probes the health of the application, if probes are enabled. If a call later fails to connect, watch
// waits for the port again.
func (c *Channel) watch(ctx context.Context) {
	for c.awaitPort(ctx) {
		if c.opts.Health.Enabled {
			c.probeWhileOpen(ctx)
			continue
		}
		c.become(condition{seen: true, healthy: true})
		select {
		case <-ctx.Done():
		case <-c.doubt:
		}
	}
}

// awaitPort returns true when the port accepts connections, and false when ctx has ended.
func (c *Channel) awaitPort(ctx context.Context) bool {
	for logged := c.Seen(); ; logged = true {
		err := c.dialOnce(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		if !logged {
			c.opts.Logger.Info("waiting for the application: nothing listens on its port yet", "address", c.target)
		}
		c.become(condition{seen: c.Seen(), why: "the application does not take connections on " + c.target})
		pause(ctx, portInterval)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (c *Channel) dialOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.target)
	if err == nil {
		_ = conn.Close() // the dial is all that was needed
	}
	return err
}

// probeWhileOpen probes the health of the application at intervals of Health.Interval. One successful probe makes the
// application healthy, and Health.Threshold consecutive failures make it unhealthy. probeWhileOpen returns when a call
// fails to connect, or when ctx ends.
func (c *Channel) probeWhileOpen(ctx context.Context) {
	failures := 0
	if !c.state.Load().healthy {
		failures = c.opts.Health.Threshold // one more failure keeps the application unhealthy
	}
	tick := time.NewTicker(c.opts.Health.Interval)
	defer tick.Stop()
	for {
		if err := c.probe(ctx); ctx.Err() != nil {
			return
		} else if err == nil {
			failures = 0
			c.become(condition{seen: true, healthy: true})
		} else if failures++; failures >= c.opts.Health.Threshold {
			c.become(condition{seen: true, why: "the application is not healthy: " + fault.Text(err)})
		}
		select {
		case <-ctx.Done():
			return
		case <-c.doubt:
			return
		case <-tick.C:
		}
	}
}

func (c *Channel) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Health.Timeout)
	defer cancel()
	return c.carry.probe(ctx, c)
}

// become sets the condition of the application. If its health has changed, become logs this and calls OnHealth.
func (c *Channel) become(to condition) {
	was := c.state.Swap(&to)
	if was.healthy == to.healthy {
		return
	}
	if to.healthy {
		c.opts.Logger.Info("the application accepts calls", "address", c.target, "protocol", string(c.opts.Protocol))
	} else {
		c.opts.Logger.Warn("the application does not accept calls", "address", c.target, "reason", to.why)
	}
	if c.opts.OnHealth != nil {
		c.opts.OnHealth(to.healthy)
	}
}

// refused makes the prober check the port after a call could not connect.
func (c *Channel) refused() {
	select {
	case c.doubt <- struct{}{}:
	default:
	}
}
