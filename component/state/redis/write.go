package redis

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// source is a Lua script that executes operations. It checks all conditions and the Redis types of all keys before the
// first write. If a check fails, the script changes nothing.
//
// Redis does not undo earlier writes of the script if a later command fails, for example because the ACL user may not
// execute it. The script then returns an error that contains "PARTLY-WRITTEN".
//
// Each operation has six arguments:
//
//	the number of its key
//	"", no condition; "n", the key must not exist; or "e" and the ETag that it must have
//	the version to write; empty = delete the key
//	the value
//	the field quorate; empty = none
//	milliseconds until it expires; 0 = never, negative = at once
//
// The script returns 0 if all conditions are met. Otherwise it returns the number of the first operation whose
// condition is not met, counted from 1. This number is negative if the operation needs an ETag but its key does not
// exist.
const source = `
local written = false
local function write(...)
  if not written then
    redis.call(...)
    written = true
    return
  end
  local reply = redis.pcall(...)
  if type(reply) == "table" and reply.err then error("` + partly + ` " .. reply.err, 0) end
end
local current = {}
for i, key in ipairs(KEYS) do
  current[i] = redis.call("HGET", key, "version")
end
for a = 1, #ARGV, 6 do
  local version, condition = current[tonumber(ARGV[a])], ARGV[a+1]
  local operation = (a + 5) / 6
  if condition == "n" then
    if version then return operation end
  elseif condition ~= "" then
    if not version then return -operation end
    if version ~= string.sub(condition, 2) then return operation end
  end
end
for a = 1, #ARGV, 6 do
  local key, version, tag, left = KEYS[tonumber(ARGV[a])], ARGV[a+2], ARGV[a+4], tonumber(ARGV[a+5])
  if version == "" or left < 0 then
    write("DEL", key)
  else
    write("HSET", key, "data", ARGV[a+3], "version", version)
    if ARGV[a+1] == "n" then write("HSET", key, "first-write", 0) end
    if tag == "" then write("HDEL", key, "quorate") else write("HSET", key, "quorate", tag) end
    if left == 0 then write("PERSIST", key) else write("PEXPIRE", key, ARGV[a+5]) end
  end
end
return 0
`

// partly is a word in an error reply of the script. It means that Redis has executed only some of the writes.
const partly = "PARTLY-WRITTEN"

// Set implements state.Store. It writes all items atomically, unless their keys are in several slots of a Redis
// Cluster. In this case, it writes the items slot by slot if no item has a condition, and otherwise returns
// fault.Invalid. If the write of a slot fails, the slots before it stay written.
func (s *Store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	const op = "redis.Set"
	ops := make([]state.Operation, len(r.Items))
	for i, item := range r.Items {
		ops[i] = state.Operation{Kind: state.Upsert, Write: item}
	}
	if err := refuse(op, r.RequestID); err != nil {
		return state.Written{}, err
	}
	return s.apply(ctx, op, ops, r.Consistency, true)
}

// Delete implements state.Store.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	const op = "redis.Delete"
	if err := refuse(op, r.RequestID); err != nil {
		return state.Written{}, err
	}
	return s.apply(ctx, op, []state.Operation{{Kind: state.Remove, Write: state.Write{
		Key: r.Key, ETag: r.ETag, Concurrency: r.Concurrency,
	}}}, r.Consistency, false)
}

// Transact implements state.Transactor.
func (s *Store) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	const op = "redis.Transact"
	if err := refuse(op, r.RequestID); err != nil {
		return state.Written{}, err
	}
	return s.apply(ctx, op, r.Operations, r.Consistency, false)
}

// refuse returns fault.Invalid for a request with a request id, because the store does not detect repeated requests.
func refuse(op, requestID string) error {
	if requestID == "" {
		return nil
	}
	return &fault.Error{Code: fault.Invalid, Op: op, Msg: "a store in Redis does not remember request ids",
		Hint: "omit Quorate-Request-Id, and use ETags to retry safely"}
}

// apply executes operations atomically. If split is true and the keys are in several slots of a Redis Cluster, it
// executes them slot by slot instead.
func (s *Store) apply(ctx context.Context, op string, ops []state.Operation, level state.Consistency,
	split bool,
) (state.Written, error) {
	if err := given(ctx, op); err != nil {
		return state.Written{}, err
	}
	etags := make([]string, len(ops))
	for i := range ops {
		if ops[i].Key == "" || ops[i].Kind != state.Upsert && ops[i].Kind != state.Remove {
			return state.Written{}, &fault.Error{Code: fault.Invalid, Op: op,
				Msg: "a write without a key or of an unknown kind"}
		}
		if ops[i].Kind == state.Upsert {
			etags[i] = newVersion()
		}
	}
	groups, err := s.groups(op, ops, split)
	if err != nil {
		return state.Written{}, err
	}
	for i, group := range groups {
		if err := s.applyGroup(ctx, op, ops, etags, group, level); err != nil {
			if i > 0 {
				err = &fault.Error{Code: fault.Indeterminate, Op: op, Err: err,
					Msg: "some items were written and others not"}
			}
			return state.Written{}, err
		}
	}
	return state.Written{ETags: etags, Proof: s.proof()}, nil
}

// groups divides the operations into groups that can be applied atomically. In a Redis Cluster, there is a group for
// each slot. On other servers, there is only one group. A group is a list of indexes of ops.
//
// If there are several slots, groups returns fault.Invalid unless split is true and no operation has a condition.
func (s *Store) groups(op string, ops []state.Operation, split bool) ([][]int, error) {
	bySlot := map[int]int{} // index of the group of each slot
	var groups [][]int
	conditions := false
	for i := range ops {
		slot := 0
		if s.settings.kind == cluster {
			slot = slotOf(s.name(ops[i].Key))
		}
		at, ok := bySlot[slot]
		if !ok {
			at = len(groups)
			bySlot[slot] = at
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], i)
		conditions = conditions || condition(&ops[i]) != ""
	}
	if len(groups) > 1 && (conditions || !split) {
		return nil, &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  "the keys are in several slots of the Redis Cluster, which cannot change them together",
			Hint: `send them one by one, or set clusterHashTags: "true" for a store without data`}
	}
	return groups, nil
}

// newVersion returns a random version of 53 bits. Dapr increments the version with each write, and may calculate in
// floating-point numbers. A float64 represents all integers of 53 bits exactly.
func newVersion() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // rand.Read never fails
	return strconv.FormatUint(binary.LittleEndian.Uint64(b[:])>>11|1<<52, 10)
}

// condition returns the condition of an operation for the script.
func condition(o *state.Operation) string {
	switch {
	case o.ETag != "":
		return "e" + o.ETag
	case o.Concurrency == state.FirstWrite && o.Kind == state.Upsert:
		return "n"
	}
	return ""
}

// applyGroup applies one group of operations atomically.
func (s *Store) applyGroup(ctx context.Context, op string, ops []state.Operation, etags []string, group []int,
	level state.Consistency,
) error {
	const size = 6 // arguments of each operation
	var names []string
	numbers := map[string]int{}
	args := make([]any, 0, size*len(group))
	for _, i := range group {
		o := &ops[i]
		name := s.name(o.Key)
		number, ok := numbers[name]
		if !ok {
			names = append(names, name)
			number = len(names)
			numbers[name] = number
		}
		args = append(args, number, condition(o), etags[i])
		if o.Kind == state.Remove {
			args = append(args, "", "", 0)
			continue
		}
		args = append(args, o.Value, tag(etags[i], o.ContentType), s.expiresIn(o.TTL))
	}
	if len(names) == 0 {
		return nil
	}
	failed, err := s.run(ctx, op, names, args, level == state.Strong)
	if err != nil {
		return s.failed(op, ops[group[0]].Key, err, true)
	}
	switch {
	case failed < -len(group) || failed > len(group):
		return &fault.Error{Code: fault.Indeterminate, Op: op, Key: ops[group[0]].Key,
			Msg:  "the answer of Redis at " + s.settings.where() + " cannot be read; the write may have been applied",
			Hint: "check redisHost, and read the key before you write it again"}
	case failed < 0:
		return conflict(op, ops[group[-failed-1]].Key, "the key does not exist")
	case failed > 0:
		o := &ops[group[failed-1]]
		if condition(o) == "n" {
			return conflict(op, o.Key, "the key exists already")
		}
		return conflict(op, o.Key, "the ETag is not the current one")
	}
	return nil
}

func conflict(op, key, why string) error {
	return &fault.Error{Code: fault.Conflict, Op: op, Key: key, Msg: "key " + strconv.Quote(key) + ": " + why}
}

// once is a command that the client library must not retry, because Redis may have executed the first attempt.
type once struct{ *goredis.Cmd }

// NoRetry implements goredis.Cmder.
func (once) NoRetry() bool { return true }

// run executes the script. It retries only if Redis certainly did not execute the script. If strong is true, it also
// waits until the configured number of Redis replicas has acknowledged the write.
func (s *Store) run(ctx context.Context, op string, names []string, args []any, strong bool) (int, error) {
	replicas := 0
	if strong {
		replicas = s.settings.replicas
	}
	sha, loaded := s.script.Hash(), true
	for attempt := 0; ; attempt++ {
		text, name := sha, "evalsha"
		if !loaded {
			text, name = source, "eval"
		}
		all := append([]any{name, text, len(names)}, make([]any, 0, len(names)+len(args))...)
		for _, n := range names {
			all = append(all, n)
		}
		cmd := goredis.NewCmd(ctx, append(all, args...)...)
		err := s.send(ctx, once{cmd}, names[0], replicas)
		switch {
		case err == nil:
			return cmd.Int()
		case goredis.HasErrorPrefix(err, "NOSCRIPT") && loaded:
			loaded = false
			attempt--
			continue
		case !again(err) || attempt >= s.settings.retries:
			return 0, err
		}
		if c, ok := s.client.(*goredis.ClusterClient); ok {
			c.ReloadState(ctx) // a replica may have become the master
		}
		pause := min(s.settings.minPause<<min(attempt, 16), s.settings.maxPause)
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(pause):
		}
	}
}

// send sends a command. If replicas is not 0, send then waits until that number of Redis replicas has acknowledged the
// write. If fewer replicas do so within replicaTimeout, the error has the type unconfirmed.
func (s *Store) send(ctx context.Context, cmd once, name string, replicas int) error {
	if replicas == 0 {
		return s.client.Process(ctx, cmd)
	}
	c, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		return s.sendTo(ctx, s.client, cmd, replicas, false)
	}
	node, err := c.MasterForKey(ctx, name)
	if err != nil {
		return err
	}
	err = s.sendTo(ctx, node, cmd, replicas, false)
	if address, ask := redirected(err); address != "" {
		c.ReloadState(ctx)
		if node := masterAt(ctx, c, address); node != nil {
			cmd.SetErr(nil)
			return s.sendTo(ctx, node, cmd, replicas, ask)
		}
	}
	return err
}

// sendTo sends a command to one server, followed by a WAIT for the replicas. Set ask after an ASK reply. The server
// then executes the command although it has not received the whole slot yet.
func (s *Store) sendTo(ctx context.Context, node goredis.Cmdable, cmd once, replicas int, ask bool) error {
	pipe := node.Pipeline()
	if ask {
		_ = pipe.Process(ctx, goredis.NewCmd(ctx, "asking"))
	}
	_ = pipe.Process(ctx, cmd)
	wait := goredis.NewIntCmd(ctx, "wait", replicas, s.settings.replicaTimeout.Milliseconds())
	_ = pipe.Process(ctx, wait)
	execute(ctx, pipe)
	if err := cmd.Err(); err != nil {
		return err
	}
	if failed, err := cmd.Int(); err == nil && failed != 0 {
		return nil // nothing was written
	}
	acknowledged, err := wait.Result()
	switch {
	case err != nil: // even if Redis has not executed WAIT
		return unconfirmed{err}
	case acknowledged < int64(replicas):
		return unconfirmed{fmt.Errorf("%d of %d replicas acknowledged it within %s", acknowledged, replicas,
			s.settings.replicaTimeout)}
	}
	return nil
}

// unconfirmed is the error of a write that Redis has executed but too few replicas have acknowledged. It hides its
// cause from errors.As, because the cause is an error of WAIT and not of the write.
type unconfirmed struct{ cause error }

// Error returns the text of the cause.
func (e unconfirmed) Error() string { return e.cause.Error() }
