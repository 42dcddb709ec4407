package redis

import (
	"context"
	"time"

	redisstate "github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/internal/fault"
)

// The bounds of one search for idle messages.
const (
	pendingPage = 1000 // pending messages of one page
	maxPages    = 10   // pages of one search; the next search continues
)

// reclaim searches for idle messages, and repeats failed acknowledgements, until the group ends.
func (g *group) reclaim() {
	var idle <-chan time.Time
	var from position
	if g.broker.set.redelivers() {
		from = g.look(from)
		ticker := time.NewTicker(g.broker.set.redeliver)
		defer ticker.Stop()
		idle = ticker.C
	}
	again := time.NewTicker(unackedPause)
	defer again.Stop()
	for {
		select {
		case <-g.run.Done():
			return
		case <-idle:
			from = g.look(from)
		case <-again.C:
			ctx, cancel := context.WithTimeout(g.run, g.broker.client.Patience())
			g.acknowledgeAgain(ctx)
			cancel()
		}
	}
}

// look searches the pending messages for idle ones, and claims and queues them. It begins at the given id, where zero
// means the oldest message. It returns the id at which the next search begins.
func (g *group) look(from position) position {
	for range maxPages {
		room := g.room()
		if room == 0 || g.run.Err() != nil {
			return from
		}
		page, err := g.pending(from)
		if err != nil {
			return from // the reader logs that Redis fails
		}
		next, done := g.claimIdle(page, room)
		switch {
		case done:
			return next
		case len(page) < pendingPage:
			return position{}
		}
		from = next
	}
	return from
}

// pending returns a page of the messages that were delivered but not acknowledged. The page begins at the given id.
func (g *group) pending(from position) ([]idle, error) {
	ctx, cancel := context.WithTimeout(g.run, g.broker.client.Patience())
	defer cancel()
	reply := g.broker.client.ReadAll(ctx, "redis.Reclaim", g.key.topic,
		redisstate.Command{"xpending", g.key.topic, g.key.name, from.String(), "+", pendingPage})[0]
	if reply.Err != nil {
		return nil, reply.Err
	}
	return pendingOf(reply.Value, pendingPage)
}

// claimIdle claims and queues the idle messages of a page until the queue is full. room is the number of messages that
// the queue can take.
//
// claimIdle returns the id at which the search continues. If the queue is full or a command failed, done is true and
// the search must stop for now.
func (g *group) claimIdle(page []idle, room int) (next position, done bool) {
	var chosen []idle
	for n, p := range page {
		if p.ms >= g.broker.set.processing.Milliseconds() && !g.knows(p.id) {
			chosen = append(chosen, p)
		}
		next = p.id.after()
		if len(chosen) == min(room, portion) || len(chosen) > 0 && n == len(page)-1 {
			if !g.claim(chosen) {
				return chosen[0].id, true
			}
			if room = g.room(); room == 0 {
				return next, true
			}
			chosen = nil
		}
	}
	return next, false
}

func (g *group) knows(id position) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.items[id] != nil || g.unacked[id]
}

// claim claims idle messages for this process and queues them. It skips messages that another process has claimed in
// the meantime. It returns false if a command failed.
func (g *group) claim(list []idle) bool {
	start := time.Now()
	commands := make([]redisstate.Command, len(list))
	for n, p := range list {
		// With JUSTID, the number of attempts is exactly the given number. fetch reads the message afterwards.
		commands[n] = redisstate.Command{"xclaim", g.key.topic, g.key.name, g.key.name,
			g.broker.set.processing.Milliseconds(), p.id.String(), "retrycount", p.attempts + 1, "justid"}
	}
	ctx, cancel := context.WithTimeout(g.run, g.broker.client.Patience())
	defer cancel()
	var mine []idle
	for n, reply := range g.broker.client.WriteAll(ctx, "redis.Reclaim", g.key.topic, commands...) {
		if reply.Err != nil {
			return false
		}
		if ids, err := idsOf(reply.Value, 1); err == nil && ids[list[n].id] {
			mine = append(mine, list[n])
		}
	}
	for len(mine) > 0 {
		g.mu.Lock()
		count := min(g.atOnce(), len(mine))
		g.mu.Unlock()
		if !g.fetch(mine[:count], start) {
			return false
		}
		mine = mine[count:]
	}
	return true
}

// fetch reads the content of claimed messages and queues them. The lease of each message begins at start, a time before
// the claim. Therefore the lease ends before another process can claim the message. fetch returns false if a command
// failed.
func (g *group) fetch(list []idle, start time.Time) bool {
	commands := make([]redisstate.Command, len(list))
	for n, p := range list {
		commands[n] = redisstate.Command{"xrange", g.key.topic, p.id.String(), p.id.String()}
	}
	ctx, cancel := context.WithTimeout(g.run, g.broker.client.Patience())
	defer cancel()
	replies := g.broker.client.ReadAll(ctx, "redis.Reclaim", g.key.topic, commands...)
	for n, reply := range replies {
		if fault.Is(reply.Err, fault.TooLarge) && len(list) > 1 { // read each message alone
			for ; n < len(list); n++ {
				if !g.fetch(list[n:n+1], start) {
					return false
				}
			}
			return true
		}
		found, err := entriesOf(reply.Value, 1)
		switch {
		case fault.Is(reply.Err, fault.TooLarge):
			g.log.Error("a message is too large to be read; it stays pending", "id", list[n].id.String(), "error",
				g.broker.explain("redis.Reclaim", g.key.topic, reply.Err))
		case reply.Err != nil || err != nil:
			return false
		case len(found) == 0:
			g.log.Warn("a message was deleted in Redis before it was acknowledged", "id", list[n].id.String(), "hint",
				"raise maxLenApprox or streamTTL, or let the subscribers be faster")
			g.acknowledge(ctx, list[n].id)
		case found[0].id == list[n].id:
			g.add(&found[0], int(list[n].attempts+1), start)
		}
	}
	return true
}

// acknowledge removes messages from the pending messages in Redis.
func (g *group) acknowledge(ctx context.Context, ids ...position) error {
	command := redisstate.Command{"xack", g.key.topic, g.key.name}
	for _, id := range ids {
		command = append(command, id.String())
	}
	return g.broker.client.WriteAll(ctx, "redis.Settle", g.key.topic, command)[0].Err
}

// acknowledgeAgain repeats up to portion acknowledgements that Redis may not have received.
func (g *group) acknowledgeAgain(ctx context.Context) {
	g.mu.Lock()
	ids := make([]position, 0, min(len(g.unacked), portion))
	for id := range g.unacked {
		if len(ids) < portion {
			ids = append(ids, id)
		}
	}
	g.mu.Unlock()
	if len(ids) == 0 || g.acknowledge(ctx, ids...) != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		delete(g.unacked, id)
	}
}
