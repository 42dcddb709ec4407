package statecmd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

const (
	watchPause   = time.Second     // between two attempts to connect
	watchSilence = 5 * time.Second // interval of the bookmarks that show that the connection works
)

func (m *commands) stateWatchCommand() *cobra.Command {
	api, w := command.APIFlags{Shell: m.Shell}, watcher{pause: watchPause}
	asJSON := false
	c := &cobra.Command{
		Use:   "watch store [flags]",
		Short: "Show changes of keys as they happen",
		Long: "Show changes of the application's keys as they happen, in order and each once. The command\n" +
			"connects again by itself and goes on after the last change that it has shown. End it with\nCtrl-C.",
		Example: "  quorate state watch statestore --prefix order- --snapshot",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if w.prefix != "" && len(w.keys) > 0 {
			return command.Usagef("--prefix and --key cannot be given together")
		}
		return with(&api, c, func(client *stateClient) error {
			client.Http.Timeout = 0 // a watch has no time limit
			w.client, w.store, w.out, w.asJSON, w.log = client, args[0], m.Stdout, asJSON, m.Stderr
			return w.run(c.Context())
		})
	}
	api.Bind(c)
	c.Flags().StringVar(&w.prefix, "prefix", "", "only keys that start with `prefix`")
	c.Flags().StringArrayVar(&w.keys, "key", nil, "only this `key`; may be repeated")
	c.Flags().StringVar(&w.from, "from", "", "changes after this `position`; 0 = everything that is kept")
	c.Flags().BoolVar(&w.snapshot, "snapshot", false, "show the present keys first; also start again so when needed")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line, as the API sends it")
	return c
}

// watcher shows the changes of a store.
type watcher struct {
	client        *stateClient
	store, prefix string
	keys          []string
	from          string // position after the last change that was shown; the next connection continues there
	snapshot      bool
	asJSON        bool
	out, log      io.Writer

	pause     time.Duration // between two attempts to connect
	restart   bool          // the next connection begins with a snapshot
	connected bool          // the last call of connect has received an event
	compacted bool          // the store no longer has the changes after from

	// The rest is about the request whose changes are being read.
	id      string   // position of the event that is being read; empty = the request has further changes
	pending []string // changes that were read and not shown yet
}

// watchEvent is one event of the API.
type watchEvent struct {
	Type, Revision, Key, Reason, ErrorCode, Message, Resume string
	Value                                                   json.RawMessage
}

// run shows changes until ctx ends. If a connection ends, run opens a new one. It returns an error if a new connection
// cannot help.
func (w *watcher) run(ctx context.Context) error {
	w.restart = w.snapshot
	for last := ""; ; {
		w.connected, w.compacted = false, false
		err := w.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case w.compacted && w.snapshot:
			w.restart, w.from = true, ""
		case err != nil && !fault.Is(err, fault.Unavailable):
			return err
		}
		if w.connected {
			last = ""
		}
		if text := fault.Text(err); err != nil && text != last { // an outage is reported once
			last = text
			if _, err := fmt.Fprintln(w.log, "connecting again:", text); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(w.pause):
		}
	}
}

// connect opens a connection and shows events until the connection ends. The node sends a bookmark every watchSilence.
// If nothing arrives for four times as long, connect closes the connection.
func (w *watcher) connect(ctx context.Context) error {
	w.id, w.pending = "", nil
	q := url.Values{"bookmark": {watchSilence.String()}}
	setIf(q, "prefix", w.prefix)
	for _, k := range w.keys {
		q.Add("key", k)
	}
	if w.restart {
		q.Set("snapshot", "true")
	} else {
		setIf(q, "from", w.from)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(4*watchSilence, cancel)
	defer silence.Stop()
	body, err := w.open(ctx, q)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	r := bufio.NewReader(body)
	for {
		line, err := r.ReadString('\n')
		silence.Reset(4 * watchSilence)
		if err != nil {
			return &fault.Error{Code: fault.Unavailable, Op: "cli.watch", Msg: "the connection ended",
				Err: command.RootCause(err)}
		}
		if err := w.event(line); err != nil {
			return err
		}
	}
}

func (w *watcher) open(ctx context.Context, q url.Values) (io.ReadCloser, error) {
	address := w.client.Base + "/v1.0/watch/" + url.PathEscape(w.store) + "?" + q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, command.Usagef("%q is not the address of an API (write it as 127.0.0.1:3500)", w.client.Base)
	}
	// Only events with ids show where a request ends.
	req.Header.Set("Accept", "text/event-stream")
	if w.client.Token != "" {
		req.Header.Set("dapr-api-token", w.client.Token)
	}
	resp, err := w.client.Http.Do(req)
	if err != nil {
		return nil, command.Unreachable(w.client.Base, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, command.Unreadable(w.client.Base, err)
	}
	w.compacted = resp.StatusCode == http.StatusGone
	return nil, watchRefusal(resp.StatusCode, body)
}

// watchRefusal returns the error of a refused watch. It has the code fault.NotFound if the position of the watch was
// compacted, and fault.Unavailable if the refusal is temporary.
func watchRefusal(status int, body []byte) error {
	err := command.Refusal(status, body)
	var e *fault.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case status == http.StatusGone:
		e.Code, e.Hint = fault.NotFound, "start again from the present keys with --snapshot"
	case status >= 500 && !strings.Contains(string(body), "ERR_STATE_STORE"):
		e.Code = fault.Unavailable
	}
	return e
}

// event handles one line of the stream. It shows the changes of one request together, when the last of them has
// arrived. It then sets w.from to the position at which the next connection continues. So a reconnection neither loses
// nor repeats a change.
func (w *watcher) event(line string) error {
	line = strings.TrimRight(line, "\r\n")
	if id, ok := strings.CutPrefix(line, "id: "); ok {
		w.id = id
		return nil
	}
	data, ok := strings.CutPrefix(line, "data: ")
	if !ok {
		return nil
	}
	var e watchEvent
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return command.Unreadable(w.client.Base, err)
	}
	w.connected = w.connected || e.Type != "error"
	switch e.Type {
	case "error":
		w.from = cmp.Or(e.Resume, w.from)
		if e.ErrorCode == "ERR_WATCH_COMPACTED" {
			w.compacted = true
			return &fault.Error{Code: fault.NotFound, Op: "cli.watch", Msg: e.Message,
				Hint: "start again from the present keys with --snapshot"}
		}
		return &fault.Error{Code: fault.Unavailable, Op: "cli.watch", Msg: e.Message}
	case "synced":
		w.restart = false
	}
	if text := w.text(&e, data); text != "" {
		w.pending = append(w.pending, text)
	}
	if w.id == "" && e.Type != "item" {
		return nil
	}
	for _, text := range w.pending {
		if _, err := fmt.Fprintln(w.out, text); err != nil {
			return err
		}
	}
	w.from, w.id, w.pending = cmp.Or(w.id, w.from), "", w.pending[:0]
	return nil
}

// text returns what is shown of an event, or "" if nothing is shown.
func (w *watcher) text(e *watchEvent, data string) string {
	switch {
	case w.asJSON && e.Type != "bookmark":
		return data
	case e.Type == "item", e.Type == "put":
		return fmt.Sprintf("%-8s %-7s %s = %s", e.Revision, e.Type, command.Printable(e.Key), e.Value)
	case e.Type == "delete":
		return fmt.Sprintf("%-8s %-7s %s (%s)", e.Revision, e.Type, command.Printable(e.Key), e.Reason)
	}
	return ""
}
