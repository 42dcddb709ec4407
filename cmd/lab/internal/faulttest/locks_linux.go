package faulttest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

const (
	lockStore = "lockstore" // which every node has by default
	// lockLife is the number of operations after which clients use new locks. It keeps the history of each lock short.
	lockLife = 60
	// locksInUse is the number of locks that clients compete for.
	locksInUse = 2
)

// LockLoad has clients that acquire, renew, release and read locks through all running nodes. They also write keys
// with the fencing tokens of their locks. Sometimes a client stops using a lock, which then expires. The history is
// checked for these guarantees: a lock never has two owners and never expires early, its tokens increase, and no write
// with an older token succeeds.
type LockLoad struct {
	History *LockHistory

	cluster *Cluster
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// StartLocks starts clients.
func StartLocks(c *Cluster, seed uint64, clients int) *LockLoad {
	ctx, cancel := context.WithCancel(context.Background())
	l := &LockLoad{History: NewLockHistory(), cluster: c, stop: cancel}
	for id := range clients {
		one := &lockClient{load: l, id: id, rnd: rand.New(rand.NewPCG(seed, uint64(id)+6000))} //nolint:gosec // chance
		l.wg.Go(func() {
			for ctx.Err() == nil {
				c.pass(ctx, func() { one.one(ctx) })
			}
		})
	}
	return l
}

// Stop stops the clients.
func (l *LockLoad) Stop() {
	l.stop()
	l.wg.Wait()
}

// lockClient makes one operation after the other, each at a random node.
type lockClient struct {
	load  *LockLoad
	id, n int
	rnd   *rand.Rand
	name  string // of the lock that it uses
	owner string // as which it has acquired the lock; empty = never
	token uint64 // that it has got
	holds bool   // as far as it knows
}

func (c *lockClient) one(ctx context.Context) {
	nodes := c.load.cluster.Running()
	if len(nodes) == 0 {
		pause(ctx, 10*time.Millisecond)
		return
	}
	n := nodes[c.rnd.IntN(len(nodes))]
	in := lockIn{lock: c.name, owner: c.owner, token: c.token}
	dice := c.rnd.IntN(20)
	switch {
	case c.holds && dice < 5:
		in.call, in.expiry = callRenew, c.expiry()
	case c.holds && dice < 10:
		in.call = callWrite
	case c.holds && dice < 16:
		in.call = callUnlock
		c.holds = false
	case c.holds && dice < 18:
		in.call = callLook
	case c.holds: // it forgets the lock
		c.holds = false
		return
	case dice < 3 && c.token != 0:
		in.call = callWrite // with the token of a former owner
	case dice < 4 && c.owner != "":
		in.call = callUnlock
	case dice < 5 && c.owner != "":
		in.call, in.expiry = callRenew, c.expiry()
	case dice < 8 && c.name != "":
		in.call = callLook
	default:
		c.n++
		c.name = fmt.Sprintf("r%d-%d", c.load.History.Size()/lockLife, c.rnd.IntN(locksInUse))
		c.owner, c.token = fmt.Sprintf("c%d-%d", c.id, c.n), 0
		in = lockIn{lock: c.name, owner: c.owner, call: callLock, expiry: c.expiry()}
	}
	if out, known := c.do(ctx, n, in); known && out.ok {
		switch in.call {
		case callLock, callRenew:
			c.holds, c.token = true, out.token
		case callUnlock, callLook, callWrite:
		}
	} else if in.call == callRenew || in.call == callWrite {
		c.holds = false
	}
}

func (c *lockClient) expiry() time.Duration { return time.Duration(1+c.rnd.IntN(3)) * time.Second }

// do sends an operation and records it in the history. known is false if the node did not return the result of the
// operation.
func (c *lockClient) do(ctx context.Context, n *Node, in lockIn) (out lockOut, known bool) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	in.begin = c.load.History.now()
	out, outcome := lockDo(limit, n, in)
	changes := in.call == callLock || in.call == callUnlock || in.call == callRenew
	switch {
	case outcome == Done:
		c.load.History.add(c.id, in, out)
		return out, true
	case outcome == Unknown && changes:
		c.load.History.add(c.id, in, lockOut{unknown: true})
	}
	pause(ctx, 10*time.Millisecond)
	return out, false
}

// lockDo sends an operation on a lock to a node.
func lockDo(ctx context.Context, n *Node, in lockIn) (out lockOut, outcome Outcome) {
	body := text(map[string]any{"resourceId": in.lock, "lockOwner": in.owner,
		"expiryInSeconds": int(in.expiry.Seconds())})
	var r reply
	var err error
	switch in.call {
	case callLock:
		r, err = n.raw(ctx, "POST", "/v1.0/lock/"+lockStore, body)
	case callRenew:
		r, err = n.raw(ctx, "POST", "/v1.0/lock/"+lockStore+"/renew", body)
	case callUnlock:
		r, err = n.raw(ctx, "POST", "/v1.0/unlock/"+lockStore, body)
	case callLook:
		r, err = n.raw(ctx, "GET", "/v1.0/lock/"+lockStore+"/"+in.lock, "")
	case callWrite:
		write := Set("fenced-"+in.lock, in.owner, Strong)
		r, err = n.raw(ctx, write.Method, write.Path, write.Body, "Quorate-Lock",
			fmt.Sprintf("%s/%s@%d", lockStore, in.lock, in.token))
		switch {
		case err == nil && r.status == 204:
			return lockOut{ok: true}, Done
		case err == nil && r.status == 412:
			return lockOut{}, Done
		}
	}
	if err != nil {
		return out, lost(Request{}, err).Outcome
	}
	if r.status != 200 {
		return out, failure(Request{}, r.status, r.body).Outcome
	}
	var answer struct {
		Success, Held bool
		Status        int
		Revision      string
	}
	if err := json.Unmarshal(r.body, &answer); err != nil {
		return out, Unknown
	}
	out.ok, out.status = answer.Success || answer.Held, answer.Status
	token := answer.Revision
	if token == "" {
		token = r.header.Get("Quorate-Lock-Revision")
	}
	out.token, _ = strconv.ParseUint(token, 10, 64) // 0 if there is none
	return out, Done
}
