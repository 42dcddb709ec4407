package benchcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

// keyPrefix is the prefix of every key, every lock name and every message that a benchmark creates.
const keyPrefix = "quorate-bench-"

const (
	maxSize = 1 << 20 // bytes of a value
	maxKeys = 1_000_000
	perSave = 100 // keys of a request that prepares or cleans
)

// plan has the flags of a benchmark, and what the benchmark derives from them.
type plan struct {
	api         command.APIFlags
	out         command.Output
	clients     int
	duration    time.Duration
	size, keys  int
	consistency string
	force, keep bool

	client *command.APIClient
	target string // name of the store, the component or the application
	value  string // the value to save, as JSON
	after  func() // called when the clients have ended
}

// command completes the command c of one benchmark and returns it. It adds the flags that all benchmarks have, and an
// action that runs the benchmark and prints the result. Before the run, the action calls prepare, which returns the
// requests to send.
func (m *commands) command(p *plan, c *cobra.Command, prepare func(context.Context) (load, error)) *cobra.Command {
	p.api.Shell = m.Shell
	p.api.Bind(c)
	p.out.Bind(c)
	f := c.Flags()
	f.IntVarP(&p.clients, "clients", "c", 16, "`number` of clients that send one request after another")
	f.DurationVarP(&p.duration, "duration", "d", 10*time.Second, "how long the clients send requests")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case p.clients < 1 || p.clients > maxClients:
			return command.Usagef("--clients %d is refused (give 1 to %d)", p.clients, maxClients)
		case p.duration < 100*time.Millisecond || p.duration > time.Hour:
			return command.Usagef("--duration %s is refused (give 100ms to 1h)", p.duration)
		case p.size < 0 || p.size > maxSize:
			return command.Usagef("--size %d is refused (give 0 to %d bytes)", p.size, maxSize)
		case f.Lookup("keys") != nil && (p.keys < 1 || p.keys > maxKeys):
			return command.Usagef("--keys %d is refused (give 1 to %d)", p.keys, maxKeys)
		case p.consistency != "" && p.consistency != "eventual" && p.consistency != "strong":
			return command.Usagef("--consistency %q is refused (give eventual or strong)", p.consistency)
		}
		p.target = args[0]
		value, err := json.Marshal(strings.Repeat("x", max(p.size-2, 0)))
		if err != nil {
			return err
		}
		p.value = string(value)
		return p.api.With(c, func(client *command.APIClient) error {
			p.client = client
			if t, ok := client.Http.Transport.(*http.Transport); ok {
				t.MaxIdleConnsPerHost = p.clients + 1 // every client keeps its connection
			}
			ctx, release := m.Interruptible(c.Context())
			defer release()
			l, err := prepare(ctx)
			if err != nil {
				return err
			}
			l.clients, l.duration = p.clients, p.duration
			r := l.run(ctx, m.Stderr)
			if p.after != nil {
				p.after()
			}
			err = command.Because(ctx, r.write(m.Stdout, p.out.JSON()))
			return errors.Join(err, p.clean(ctx))
		})
	}
	return c
}

// stateFlags adds the flags of benchmarks of state.
func (p *plan) stateFlags(c *cobra.Command) {
	f := c.Flags()
	f.IntVarP(&p.size, "size", "s", 256, "`bytes` of a value")
	f.StringVar(&p.consistency, "consistency", "", "eventual or strong; empty = the default of the store")
	f.BoolVar(&p.force, "force", false, "use the store although it has other data of the application")
	f.BoolVar(&p.keep, "keep", false, "keep the keys of the benchmark")
}

// keysFlag adds the flag for the number of keys.
func (p *plan) keysFlag(c *cobra.Command) {
	c.Flags().IntVar(&p.keys, "keys", 1000, "`number` of keys that the clients use")
}

func (m *commands) saveCommand() *cobra.Command {
	p := &plan{}
	c := &cobra.Command{
		Use:   "save store [flags]",
		Short: "Measure saves of single keys",
		Long: "Measure saves of single keys. The keys begin with " + keyPrefix + " and are deleted afterwards. A\n" +
			"store with other data of the application is refused unless --force is given.",
		Example: "  quorate bench save statestore --clients 64 --consistency strong",
		Args:    cobra.ExactArgs(1),
	}
	p.stateFlags(c)
	p.keysFlag(c)
	return m.command(p, c, func(ctx context.Context) (load, error) {
		return load{name: "save to " + p.target, details: p.details(), request: p.save}, p.claimStore(ctx)
	})
}

func (m *commands) getCommand() *cobra.Command {
	p := &plan{}
	c := &cobra.Command{
		Use:   "get store [flags]",
		Short: "Measure reads of single keys",
		Long: "Measure reads of single keys, which the command saves before and deletes afterwards. Their names\n" +
			"begin with " + keyPrefix + ". A store with other data of the application is refused unless --force\n" +
			"is given.",
		Example: "  quorate bench get statestore --clients 64 --consistency eventual",
		Args:    cobra.ExactArgs(1),
	}
	p.stateFlags(c)
	p.keysFlag(c)
	return m.command(p, c, func(ctx context.Context) (load, error) {
		q := url.Values{}
		if p.consistency != "" {
			q.Set("consistency", p.consistency)
		}
		l := load{name: "get from " + p.target, details: p.details(),
			request: func(ctx context.Context, client, n int) (time.Duration, error) {
				_, err := p.client.Do(ctx, http.MethodGet, p.statePath()+"/"+p.key(client, n), q, nil, nil)
				return 0, err
			}}
		if err := p.claimStore(ctx); err != nil {
			return l, err
		}
		if err := p.fill(ctx); err != nil {
			return l, errors.Join(err, p.clean(ctx))
		}
		return l, nil
	})
}

func (m *commands) watchCommand() *cobra.Command {
	p := &plan{}
	c := &cobra.Command{
		Use:   "watch store [flags]",
		Short: "Measure how soon a watch shows a save",
		Long: "Measure the time from the start of a save until a watch shows it. One watch follows the keys of all\n" +
			"clients, which begin with " + keyPrefix + ". A client saves again when the watch has shown its save.",
		Example: "  quorate bench watch statestore --clients 8",
		Args:    cobra.ExactArgs(1),
	}
	p.stateFlags(c)
	return m.command(p, c, func(ctx context.Context) (load, error) {
		p.keys = p.clients
		l := load{name: "watch of " + p.target, details: p.details()}
		if err := p.claimStore(ctx); err != nil {
			return l, err
		}
		w, err := p.openWatch(ctx)
		l.request = func(ctx context.Context, client, n int) (time.Duration, error) {
			begun := time.Now()
			if _, err := p.save(ctx, client, 0); err != nil {
				return 0, err
			}
			ctx, cancel := context.WithTimeout(ctx, p.api.Timeout)
			defer cancel()
			select {
			case at := <-w.seen[client]:
				return max(at.Sub(begun), 1), nil
			case <-w.ended:
				return 0, fault.New(fault.Unavailable, "cli.bench", "the watch has ended")
			case <-ctx.Done():
				return 0, fault.New(fault.Timeout, "cli.bench", "the watch has not shown a save in time")
			}
		}
		return l, err
	})
}

func (m *commands) lockCommand() *cobra.Command {
	p := &plan{}
	c := &cobra.Command{
		Use:   "lock component [flags]",
		Short: "Measure pairs of lock and unlock",
		Long: "Measure pairs of lock and unlock. Each client has a lock of its own, whose name begins with\n" +
			keyPrefix + ". The latency is that of a pair.",
		Example: "  quorate bench lock lockstore",
		Args:    cobra.ExactArgs(1),
	}
	return m.command(p, c, func(context.Context) (load, error) {
		return load{name: "lock and unlock at " + p.target, details: "one lock each", request: p.lock}, nil
	})
}

func (m *commands) callCommand() *cobra.Command {
	p := &plan{}
	c := &cobra.Command{
		Use:   "call app method [flags]",
		Short: "Measure calls of an application",
		Long: "Measure calls of a method of an application, with a POST. The application must answer with a status\n" +
			"below 300.",
		Example: "  quorate bench call orders status --size 0",
		Args:    cobra.ExactArgs(2),
	}
	c.Flags().IntVarP(&p.size, "size", "s", 256, "`bytes` of the request")
	return m.command(p, c, func(context.Context) (load, error) {
		path := "/v1.0/invoke/" + url.PathEscape(p.target) + "/method/" + strings.TrimPrefix(c.Flags().Arg(1), "/")
		return load{name: "call of " + p.target, details: command.BytesText(int64(p.size)),
			request: func(ctx context.Context, _, _ int) (time.Duration, error) {
				status, text, err := p.client.Call(ctx, http.MethodPost, path, nil, []byte(p.value), command.MaxAnswer)
				if err == nil && status >= http.StatusMultipleChoices {
					err = command.CallRefusal(p.target, status, text)
				}
				return 0, err
			}}, nil
	})
}

func (m *commands) publishCommand() *cobra.Command {
	p := &plan{}
	c := &cobra.Command{
		Use:   "publish component topic [flags]",
		Short: "Measure publishes of single messages",
		Long: "Measure publishes of single messages to a topic. The messages stay in the topic until its retention\n" +
			"ends, so use a topic of its own.",
		Example: "  quorate bench publish pubsub benchmark --clients 64",
		Args:    cobra.ExactArgs(2),
	}
	c.Flags().IntVarP(&p.size, "size", "s", 256, "`bytes` of a message")
	return m.command(p, c, func(context.Context) (load, error) {
		topic := c.Flags().Arg(1)
		path := "/v1.0/publish/" + url.PathEscape(p.target) + "/" + url.PathEscape(topic)
		return load{name: "publish to topic " + topic + " of " + p.target, details: command.BytesText(int64(p.size)),
			request: func(ctx context.Context, _, _ int) (time.Duration, error) {
				_, err := p.client.Do(ctx, http.MethodPost, path, nil, nil, []byte(p.value))
				return 0, err
			}}, nil
	})
}

func (p *plan) details() string {
	consistency := "the default consistency"
	if p.consistency != "" {
		consistency = p.consistency
	}
	return fmt.Sprintf("%s of %s, %s", command.Count(p.keys, "key"), command.BytesText(int64(p.size)), consistency)
}

func (p *plan) statePath() string { return "/v1.0/state/" + url.PathEscape(p.target) }

// key returns the key of a request. The clients begin at different keys.
func (p *plan) key(client, n int) string {
	return keyPrefix + strconv.Itoa((client*p.keys/p.clients+n)%p.keys)
}

func (p *plan) save(ctx context.Context, client, n int) (time.Duration, error) {
	return 0, p.post(ctx, []string{p.key(client, n)})
}

// post saves keys with the value of the benchmark.
func (p *plan) post(ctx context.Context, keys []string) error {
	options := ""
	if p.consistency != "" {
		options = `,"options":{"consistency":"` + p.consistency + `"}`
	}
	items := make([]string, len(keys))
	for i, k := range keys {
		items[i] = `{"key":"` + k + `","value":` + p.value + options + `}`
	}
	_, err := p.client.Do(ctx, http.MethodPost, p.statePath(), nil, nil, []byte("["+strings.Join(items, ",")+"]"))
	return err
}

// claimStore returns fault.Conflict if the application has keys in the store that do not come from a benchmark. It also
// returns an error if the store cannot list its keys. If p.force is true, claimStore does not check the store.
func (p *plan) claimStore(ctx context.Context) error {
	if p.force {
		return nil
	}
	q := url.Values{"limit": {"1000"}}
	for { // the first pages may have only keys that an earlier run has kept
		r, err := p.client.Do(ctx, http.MethodGet, p.statePath(), q, nil, nil)
		if fault.Is(err, fault.NotFound) {
			return err
		}
		if err != nil {
			var e *fault.Error
			if errors.As(err, &e) && e.Code != fault.Unavailable && e.Hint == "" {
				e.Hint = "if this store cannot list its keys, use --force after a look at what it has"
			}
			return err
		}
		var page struct {
			Keys  []struct{ Key string }
			Token string
		}
		if err := json.Unmarshal(r.Body, &page); err != nil {
			return command.Unreadable(p.client.Base, err)
		}
		for _, k := range page.Keys {
			if !strings.HasPrefix(k.Key, keyPrefix) {
				return &fault.Error{Code: fault.Conflict, Op: "cli.bench", Msg: "state store " + p.target +
					" has other data of the application, for example the key " + command.Printable(k.Key),
					Hint: "use a node for tests, or --force"}
			}
		}
		if page.Token == "" {
			return nil
		}
		q.Set("token", page.Token)
	}
}

// fill saves every key of the benchmark. When ctx ends, fill sends no further request, but waits for the current one.
// If it did not wait, the node could save keys after the benchmark has deleted them.
func (p *plan) fill(ctx context.Context) error {
	return p.eachPart(func(keys []string) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return p.post(context.WithoutCancel(ctx), keys)
	})
}

// eachPart splits the keys of the benchmark into parts and calls f with each part. A part has at most perSave keys. It
// has fewer if their values together would be larger than maxSize.
func (p *plan) eachPart(f func(keys []string) error) error {
	size := min(perSave, max(1, maxSize/max(p.size, 1)))
	for first := 0; first < p.keys; first += size {
		var keys []string
		for n := first; n < min(first+size, p.keys); n++ {
			keys = append(keys, keyPrefix+strconv.Itoa(n))
		}
		if err := f(keys); err != nil {
			return err
		}
	}
	return nil
}

// clean deletes the keys of the benchmark, unless the user wants to keep them. It does so even if ctx has ended, for
// example after Ctrl-C.
func (p *plan) clean(ctx context.Context) error {
	if p.keep || p.keys == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	return p.eachPart(func(keys []string) error {
		items := make([]string, len(keys))
		for i, k := range keys {
			items[i] = `{"operation":"delete","request":{"key":"` + k + `"}}`
		}
		_, err := p.client.Do(ctx, http.MethodPost, p.statePath()+"/transaction", nil, nil,
			[]byte(`{"operations":[`+strings.Join(items, ",")+`]}`))
		return err
	})
}

// lock acquires and releases the lock of a client. It does both even if ctx ends, so that the lock is free for the next
// run.
func (p *plan) lock(ctx context.Context, client, _ int) (time.Duration, error) {
	ctx = context.WithoutCancel(ctx)
	name := strconv.Quote(keyPrefix + strconv.Itoa(client))
	body := `{"resourceId":` + name + `,"lockOwner":` + name
	r, err := p.client.Do(ctx, http.MethodPost, "/v1.0-alpha1/lock/"+url.PathEscape(p.target), nil, nil,
		[]byte(body+`,"expiryInSeconds":60}`))
	if err != nil {
		return 0, err
	}
	var granted struct{ Success bool }
	if err := json.Unmarshal(r.Body, &granted); err != nil {
		return 0, command.Unreadable(p.client.Base, err)
	}
	if !granted.Success {
		return 0, fault.New(fault.Conflict, "cli.bench", "the lock "+keyPrefix+strconv.Itoa(client)+
			" has another owner; it ends after a minute")
	}
	_, err = p.client.Do(ctx, http.MethodPost, "/v1.0-alpha1/unlock/"+url.PathEscape(p.target), nil, nil,
		[]byte(body+`}`))
	return 0, err
}

// watch is the watch of a benchmark.
type watch struct {
	seen  []chan time.Time // by client: the time at which the watch showed its save; capacity 1
	ended chan struct{}
}

// openWatch opens a watch of the keys of all clients, and reads its events until the clients have ended.
func (p *plan) openWatch(ctx context.Context) (*watch, error) {
	q := url.Values{"prefix": {keyPrefix}, "values": {"false"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.client.Base+"/v1.0/watch/"+url.PathEscape(p.target)+
		"?"+q.Encode(), nil)
	if err != nil {
		return nil, command.Usagef("%q is not the address of an API (write it as 127.0.0.1:3500)", p.client.Base)
	}
	if p.client.Token != "" {
		req.Header.Set("dapr-api-token", p.client.Token)
	}
	client := *p.client.Http
	client.Timeout = 0          // a watch has no time limit
	resp, err := client.Do(req) //nolint:bodyclose // p.after closes it
	if err != nil {
		return nil, command.Unreachable(p.client.Base, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxSize))
		return nil, command.Refusal(resp.StatusCode, text)
	}
	w := &watch{ended: make(chan struct{})}
	for range p.clients {
		w.seen = append(w.seen, make(chan time.Time, 1))
	}
	go w.read(resp.Body)
	p.after = func() {
		_ = resp.Body.Close()
		<-w.ended
	}
	return w, nil
}

// read receives the events of the watch from r. It sends the time of each event to the channel of the client that has
// written the key. It returns when the watch ends, or at a line of more than 64 KiB.
func (w *watch) read(r io.Reader) {
	defer close(w.ended)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var e struct{ Type, Key string }
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Type != "put" {
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(e.Key, keyPrefix))
		if err != nil || n < 0 || n >= len(w.seen) {
			continue
		}
		select {
		case w.seen[n] <- time.Now():
		default: // the client has given up
		}
	}
}
