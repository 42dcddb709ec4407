package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/redisimport"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// copyFlags are the flags of state copy.
type copyFlags struct {
	api                    apiFlags
	from, to, app, prefix  string
	dry, verify, overwrite bool
	batch                  int
	rate                   int
	patience, interval     time.Duration
}

func (m *Main) stateCopyCommand() *cobra.Command {
	f, out := copyFlags{api: apiFlags{main: m}}, output{}
	c := &cobra.Command{
		Use:   "copy [flags]",
		Short: "Copy the application's state from one store to another, or compare two stores",
		Long: "Copy the state of the application that the API serves from one of its stores to another one,\n" +
			"through the node that has both. Values are copied byte for byte and keep their type and the\n" +
			"instant at which they expire. ETags are new: each store makes its own. Actor state is not copied.\n\n" +
			"A key that the other store already has with the same value is left as it is, so a second run\n" +
			"continues where the first one ended. A key that it has with another value is kept and reported,\n" +
			"unless --overwrite is given. --verify writes nothing: it compares both stores, and also reports\n" +
			"keys that only the other store has. The exit code is 0 if nothing is missing or different.\n\n" +
			"To move while the application runs: copy, stop the application's writes, copy again with\n" +
			"--overwrite, compare with --verify, and let the application use the other store.",
		Example: "  quorate state copy --from redisstore --to statestore --dry-run\n" +
			"  quorate state copy --from redisstore --to statestore --rate 500\n" +
			"  quorate state copy --from redisstore --to statestore --verify",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return f.api.with(c, func(client *stateClient) error {
			ctx, release := m.interruptible(c.Context())
			defer release()
			return m.stateCopy(ctx, client, f, out.json())
		})
	}
	f.bind(c)
	out.bind(c)
	return c
}

func (f *copyFlags) bind(c *cobra.Command) {
	f.api.bind(c)
	fl := c.Flags()
	fl.StringVar(&f.from, "from", "", "`store` to read; required")
	fl.StringVar(&f.to, "to", "", "`store` to write; required")
	fl.StringVar(&f.app, "app", "", "refuse unless the API serves the application with this `id`")
	fl.StringVar(&f.prefix, "prefix", "", "only keys that start with `prefix`")
	fl.BoolVar(&f.dry, "dry-run", false, "write nothing, only report what would be copied")
	fl.BoolVar(&f.verify, "verify", false, "write nothing, compare both stores")
	fl.BoolVar(&f.overwrite, "overwrite", false, "replace values that differ")
	fl.IntVar(&f.batch, "batch", 100, "`keys` per read and write")
	fl.IntVar(&f.rate, "rate", 0, "most `keys` per second; 0 = as fast as the stores are")
	fl.DurationVar(&f.patience, "patience", 30*time.Second, "how long to retry what a store cannot do")
	fl.DurationVar(&f.interval, "progress", 5*time.Second, "time between progress lines; 0 = none")
}

// check refuses flags that contradict each other or are out of range.
func (f *copyFlags) check() error {
	switch {
	case f.from == "" || f.to == "":
		return usagef("--from and --to are required (give the names of two stores)")
	case f.from == f.to:
		return usagef("--from and --to name the same store")
	case f.verify && (f.dry || f.overwrite):
		return usagef("--verify excludes --dry-run and --overwrite (it writes nothing)")
	case f.batch < 1 || f.batch > 1000:
		return usagef("--batch %d is refused (give 1 to 1000 keys)", f.batch)
	case f.rate < 0 || f.patience < 0 || f.interval < 0:
		return usagef("--rate, --patience and --progress must not be negative")
	}
	return nil
}

// copyReport is the result of a copy, and its JSON output.
type copyReport struct {
	From      string   `json:"from"`
	To        string   `json:"to"`
	App       string   `json:"app"`
	Seen      int64    `json:"seen"`     // keys of the first store
	Copied    int64    `json:"copied"`   // or would be, in a dry run
	Same      int64    `json:"same"`     // the other store had them with the same value
	Missing   int64    `json:"missing"`  // only with --verify: the other store does not have them
	Differ    int64    `json:"differ"`   // the other store has another value, which was kept
	Refused   int64    `json:"refused"`  // the other store refused them
	Extra     int64    `json:"extra"`    // only with --verify: only the other store has them
	Vanished  int64    `json:"vanished"` // deleted or expired during the copy
	Bytes     int64    `json:"bytes"`    // of the copied values
	Examples  []string `json:"examples"` // the first keys that are missing, differ or were refused, with the reason
	Verified  bool     `json:"verify"`
	DryRun    bool     `json:"dryRun"`
	Completed bool     `json:"complete"` // every key was looked at
}

// problems is the number of keys that keep the stores from having the same state.
func (r *copyReport) problems() int64 { return r.Missing + r.Differ + r.Refused + r.Extra }

// note keeps an example of a problem.
func (r *copyReport) note(key, why string) {
	const most = 10
	if len(r.Examples) < most {
		r.Examples = append(r.Examples, printable(key)+" ("+why+")")
	}
}

// copying is a running copy.
type copying struct {
	copyFlags
	client *stateClient
	report copyReport
	line   func(r *copyReport) // prints progress when it is time to
	begun  time.Time
}

// stateCopy runs the copy and prints the report.
func (m *Main) stateCopy(ctx context.Context, client *stateClient, f copyFlags, asJSON bool) error {
	app, err := readyFor(ctx, client, f.from)
	if err == nil {
		_, err = readyFor(ctx, client, f.to)
	}
	if err != nil {
		return err
	}
	if f.app != "" && f.app != app {
		return usagef("the API at %s serves the application %s, not %s (give the address of the other one with "+
			"--address)", client.base, app, f.app)
	}
	c := &copying{copyFlags: f, client: client, begun: time.Now(),
		report: copyReport{From: f.from, To: f.to, App: app, Examples: []string{}, Verified: f.verify, DryRun: f.dry}}
	c.line = m.copyProgress(c)
	err = c.run(ctx)
	c.report.Completed = err == nil
	var printing error
	if asJSON {
		printing = writeJSON(m.Stdout, c.report)
	} else {
		printing = m.printCopy(&c.report)
	}
	switch {
	case err != nil:
		return errors.Join(because(ctx, err), printing)
	case c.report.problems() > 0:
		return &fault.Error{Code: fault.Internal, Op: "cli.copy",
			Msg:  fmt.Sprintf("the stores differ in %d keys", c.report.problems()),
			Hint: "see the examples; --overwrite replaces values that differ"}
	}
	return printing
}

// run goes through all keys of the first store and, to verify, of the other one.
func (c *copying) run(ctx context.Context) error {
	err := c.walk(ctx, c.from, func(keys []string) error {
		c.report.Seen += int64(len(keys))
		return c.some(ctx, keys)
	})
	if err != nil || !c.verify {
		return err
	}
	return c.walk(ctx, c.to, func(keys []string) error {
		source, err := c.read(ctx, c.from, keys)
		for _, key := range keys {
			if _, there := source[key]; !there && err == nil {
				c.report.Extra++
				c.report.note(key, "only in "+c.to)
			}
		}
		return err
	})
}

// walk calls f with the keys of a store, page by page, at the rate.
func (c *copying) walk(ctx context.Context, store string, f func(keys []string) error) error {
	token, seen, begun := "", 0, time.Now()
	for {
		var page []listed
		var next string
		err := c.again(ctx, func() (err error) {
			page, next, err = c.client.page(ctx, store, c.prefix, token, c.batch)
			return err
		})
		if err != nil {
			return err
		}
		keys := make([]string, len(page))
		for i := range page {
			keys[i] = page[i].Key
		}
		if err := f(keys); err != nil {
			return err
		}
		c.line(&c.report)
		if token = next; token == "" {
			return nil
		}
		if seen += len(keys); c.rate > 0 {
			due := begun.Add(time.Duration(seen) * time.Second / time.Duration(c.rate))
			if wait := time.Until(due); wait > 0 && !rest.Pause(ctx, wait) {
				return context.Cause(ctx)
			}
		}
	}
}

// again retries do while a store cannot do it.
func (c *copying) again(ctx context.Context, do func() error) error {
	pause := patience(c.patience)
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil || single(err) || fault.Is(err, fault.Denied) || ctx.Err() != nil || !pause(ctx, attempt) {
			return err
		}
	}
}

// single reports whether an error concerns the request rather than the node.
func single(err error) bool { return fault.Is(err, fault.Conflict) || fault.Is(err, fault.Invalid) }

// stored is a value as a store has it.
type stored struct {
	value   []byte
	binary  bool
	expires time.Time // zero = never
}

// read returns the values of keys, without those that are absent.
func (c *copying) read(ctx context.Context, store string, keys []string) (map[string]stored, error) {
	out := map[string]stored{}
	if len(keys) == 0 {
		return out, nil
	}
	body, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		return nil, err
	}
	var answer response
	err = c.again(ctx, func() (err error) {
		q := url.Values{"consistency": {"strong"}}
		answer, err = c.client.do(ctx, http.MethodPost, statePath(store, "")+"/bulk", q, nil, body)
		return err
	})
	if fault.Is(err, fault.Invalid) && len(keys) > 1 { // their values are too large together
		return c.halves(ctx, store, keys)
	}
	if err != nil {
		return nil, err
	}
	var items []struct {
		Key, ETag, Error string
		Data             json.RawMessage
		Metadata         map[string]string
	}
	if err := json.Unmarshal(answer.body, &items); err != nil {
		return nil, unreadable(c.client.base, err)
	}
	for _, i := range items {
		switch {
		case i.Error != "":
			return nil, &fault.Error{Code: fault.Unavailable, Op: "cli.copy", Key: i.Key,
				Msg: "key " + strconv.Quote(i.Key) + " of store " + store + " cannot be read: " + i.Error}
		case i.ETag == "":
			continue
		}
		v := stored{value: i.Data, binary: i.Metadata[state.MetadataContentType] != ""}
		if v.binary {
			var text string
			if err := json.Unmarshal(i.Data, &text); err != nil {
				return nil, unreadable(c.client.base, err)
			}
			if v.value, err = base64.StdEncoding.DecodeString(text); err != nil {
				return nil, unreadable(c.client.base, err)
			}
		}
		if at := i.Metadata[state.MetadataExpireTime]; at != "" {
			if v.expires, err = time.Parse(time.RFC3339, at); err != nil {
				return nil, unreadable(c.client.base, err)
			}
		}
		out[i.Key] = v
	}
	return out, nil
}

// halves reads keys in two requests.
func (c *copying) halves(ctx context.Context, store string, keys []string) (map[string]stored, error) {
	out := map[string]stored{}
	for _, half := range [][]string{keys[:len(keys)/2], keys[len(keys)/2:]} {
		some, err := c.read(ctx, store, half)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, some)
	}
	return out, nil
}

// some copies or compares some keys.
func (c *copying) some(ctx context.Context, keys []string) error {
	source, err := c.read(ctx, c.from, keys)
	if err != nil {
		return err
	}
	target, err := c.read(ctx, c.to, keys)
	if err != nil {
		return err
	}
	var fresh, changed []redisimport.Item
	for _, key := range keys {
		s, there := source[key]
		t, had := target[key]
		switch {
		case !there:
			c.report.Vanished++
		case had && same(s, t):
			c.report.Same++
		case c.verify && !had:
			c.report.Missing++
			c.report.note(key, "missing in "+c.to)
		case had && !c.overwrite:
			c.report.Differ++
			c.report.note(key, "another value in "+c.to)
		case had:
			changed = append(changed, s.item(key))
		default:
			fresh = append(fresh, s.item(key))
		}
	}
	if err := c.write(ctx, fresh, true); err != nil {
		return err
	}
	return c.write(ctx, changed, false)
}

// item returns the item to write. Its TTL is rounded up, so that nothing expires early.
func (s stored) item(key string) redisimport.Item {
	i := redisimport.Item{Key: key, Value: s.value, Binary: s.binary}
	if !s.expires.IsZero() {
		i.TTL = max(time.Until(s.expires).Truncate(time.Second)+time.Second, time.Second)
	}
	return i
}

// same reports whether two stored values are equal and expire at about the same time. JSON values are compared by
// content, because a store may change their white space.
func same(a, b stored) bool {
	const tolerance = 5 * time.Second
	if a.binary != b.binary || a.expires.IsZero() != b.expires.IsZero() ||
		a.expires.Sub(b.expires).Abs() > tolerance {
		return false
	}
	return bytes.Equal(a.value, b.value) || !a.binary && sameJSON(a.value, b.value)
}

func sameJSON(a, b []byte) bool {
	values := make([]any, 2)
	for i, text := range [][]byte{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if d.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// write writes items in portions.
func (c *copying) write(ctx context.Context, items []redisimport.Item, createOnly bool) error {
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && (n == 0 || size+len(items[n].Value) <= batchBytes) {
			size += len(items[n].Value)
			n++
		}
		if err := c.together(ctx, items[:n], createOnly); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// together writes items in one request and, if one of them is refused, one by one.
func (c *copying) together(ctx context.Context, items []redisimport.Item, createOnly bool) error {
	var err error
	if !c.dry {
		to := importTarget{c.client, c.to}
		err = c.again(ctx, func() error { return to.Write(ctx, items, createOnly) })
	}
	switch {
	case err == nil:
		for _, i := range items {
			c.report.Copied++
			c.report.Bytes += int64(len(i.Value))
		}
		return nil
	case !single(err):
		return err
	case len(items) > 1:
		for i := range items {
			if err := c.together(ctx, items[i:i+1], createOnly); err != nil {
				return err
			}
		}
		return nil
	case fault.Is(err, fault.Conflict):
		c.report.Differ++
		c.report.note(items[0].Key, "written in "+c.to+" during the copy")
		return nil
	}
	c.report.Refused++
	c.report.note(items[0].Key, fault.Text(err))
	return nil
}

// copyProgress returns a function that prints a line if the last one is old enough.
func (m *Main) copyProgress(c *copying) func(*copyReport) {
	last := c.begun
	return func(r *copyReport) {
		now := time.Now()
		if c.interval == 0 || now.Sub(last) < c.interval {
			return
		}
		last = now
		took := now.Sub(c.begun)
		fmt.Fprintf(m.Stderr, "%s: %d keys seen, %d copied, %d the same, %.0f keys/s\n", took.Round(time.Second),
			r.Seen, r.Copied, r.Same, float64(r.Seen)/took.Seconds())
	}
}

// printCopy prints the report for people.
func (m *Main) printCopy(r *copyReport) error {
	verb := "Copied"
	switch {
	case r.Verified:
		verb = "Compared"
	case r.DryRun:
		verb = "Would copy"
	}
	n := r.Copied
	if r.Verified {
		n = r.Seen
	}
	fmt.Fprintf(m.Stdout, "%s %s (%s) of application %s, from store %s to store %s.\n", verb, count(int(n), "key"),
		bytesText(r.Bytes), r.App, r.From, r.To)
	if !r.Completed {
		fmt.Fprintln(m.Stdout, "The copy is incomplete. Run the command again to continue.")
	}
	rows := [][]string{{"OTHERS", "KEYS"}}
	for _, row := range []struct {
		name string
		keys int64
	}{
		{"the same in both", r.Same}, {"missing in " + r.To, r.Missing}, {"another value in " + r.To, r.Differ},
		{"refused by " + r.To, r.Refused}, {"only in " + r.To, r.Extra}, {"deleted or expired meanwhile", r.Vanished},
	} {
		if row.keys > 0 {
			rows = append(rows, []string{row.name, strconv.FormatInt(row.keys, 10)})
		}
	}
	if len(rows) > 1 {
		if err := table(m.Stdout, rows); err != nil {
			return err
		}
	}
	for _, example := range r.Examples {
		fmt.Fprintln(m.Stdout, example)
	}
	return nil
}
