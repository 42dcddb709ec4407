// Package postgresql implements the component type configuration.postgresql, which reads configuration items from a
// PostgreSQL table. The table has the same columns as for Dapr's component.
//
// The package owns the statements that read the table, and it never writes to the table. The user creates the table,
// and a trigger that reports changes with NOTIFY. A follow.Hub and the connection pool start goroutines, which Close
// ends.
package postgresql

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/component/configuration/follow"
	"github.com/quorate/quorate/component/state/outside"
	pgstate "github.com/quorate/quorate/component/state/postgresql"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store, and Alias another name for it.
const (
	Type  = "configuration.postgresql"
	Alias = "configuration.postgres"
)

// requestChannel is the metadata name with which a subscription request sets its channel.
const requestChannel = "pgNotifyChannel"

// Fields returns the metadata fields of the component type. Names and defaults are the same as in Dapr, except for
// notifyChannel, which Dapr does not have.
func Fields() []component.Field {
	out := pgstate.ClientFields()
	for i := range out {
		if out[i].Name == "connectionMaxIdleTime" {
			out[i].Aliases = []string{"connMaxIdleTime"}
		}
	}
	return append(out, component.Field{Name: "table", Required: true, Check: pgstate.CheckTable},
		component.Field{Name: "notifyChannel", Check: func(text string) error {
			if text != "" && !isName(text) {
				return errors.New("is not the name of a channel, such as config: letters, digits and _")
			}
			return nil
		}})
}

var names = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// isName reports whether text is an identifier that needs no quotes.
func isName(text string) bool { return names.MatchString(text) }

// Options are the settings of a store.
type Options struct {
	Metadata component.Values // values of Fields
	Logger   *slog.Logger
	Poll     time.Duration // pause between reads without a channel; 0 = the default of follow
}

// Store implements configuration.Store.
type Store struct {
	client  *pgstate.Client
	hub     *follow.Hub
	source  source
	channel string // channel of subscriptions that do not name a channel
}

var _ configuration.Store = (*Store)(nil)

// Open connects to PostgreSQL and checks the table. While PostgreSQL is not available, Open retries until ctx ends. It
// returns fault.Invalid if the table does not exist or does not have the expected columns.
func Open(ctx context.Context, o Options) (*Store, error) {
	client, err := pgstate.Dial(ctx, pgstate.Options{Metadata: o.Metadata, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	table := o.Metadata.Text("table")
	s := &Store{client: client, source: source{client, table, configuration.NewFlaws(o.Logger)},
		channel: o.Metadata.Text("notifyChannel")}
	s.hub = follow.New(follow.Options{Source: s.source, Logger: o.Logger, Poll: o.Poll})
	if err := outside.Wait(ctx, s.source.check); err != nil {
		_ = client.Close() // the error of check is more useful
		return nil, err
	}
	return s, nil
}

// Get implements configuration.Store. It reads all items in one statement, so they are from the same point in time. It
// ignores the metadata of the request. This differs from Dapr, where a request with metadata finds no items.
func (s *Store) Get(ctx context.Context, r configuration.GetRequest) (configuration.Found, error) {
	items, err := s.source.Read(ctx, r.Keys)
	return configuration.Found{Items: items}, err
}

// Subscribe implements configuration.Store.
func (s *Store) Subscribe(ctx context.Context, r configuration.SubscribeRequest) (configuration.Subscription, error) {
	channel := s.channel
	for name, value := range r.Metadata {
		if strings.EqualFold(name, requestChannel) {
			channel = value
		}
	}
	if channel != "" && !isName(channel) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "postgresql.Subscribe",
			Msg: requestChannel + " is not the name of a channel: letters, digits and _"}
	}
	return s.hub.Subscribe(ctx, channel, r.Keys, r.Initial)
}

// Close implements configuration.Store.
func (s *Store) Close() error {
	s.hub.Close()
	return s.client.Close()
}

// source implements follow.Source.
type source struct {
	client *pgstate.Client
	table  string
	flaws  *configuration.Flaws
}

const op = "postgresql.Get"

// columns and newest are the beginning and the end of the statement that reads items. For each key, the statement
// selects the row with the highest version. Versions that are numbers are compared as numbers.
const columns = `SELECT DISTINCT ON (key) key::text, coalesce(value::text, ''), coalesce(version::text, ''),
coalesce(metadata::text, '') FROM `

const newest = ` ORDER BY key, CASE WHEN version::text ~ '^[0-9]{1,100}$' THEN version::text::numeric END
DESC NULLS LAST, version::text DESC`

// check tries to read the table. It returns fault.Invalid if the table does not exist or lacks a column.
func (s source) check(ctx context.Context) error {
	err := s.client.Read(ctx, op, func(pgx.CollectableRow) error { return nil }, columns+s.table+" WHERE false"+newest)
	if err == nil || fault.Is(err, fault.Denied) || fault.Is(err, fault.Timeout) {
		return err
	}
	if code := pgstate.CodeOf(err); code == "42P01" || code == "42703" {
		return &fault.Error{Code: fault.Invalid, Op: "postgresql.Open", Err: err,
			Msg:  "the table " + s.table + " does not exist, or has other columns than key, value, version, metadata",
			Hint: "create it in " + s.client.Where() + " as docs/components/configuration.postgresql.md shows"}
	}
	return err
}

// Read implements follow.Source. If the metadata of an item is not a JSON object, Read logs a warning and returns the
// item without metadata, so that one bad item does not make the whole read fail.
func (s source) Read(ctx context.Context, keys []string) ([]configuration.Item, error) {
	sql, args := columns+s.table, []any(nil)
	if len(keys) > 0 {
		sql, args = sql+" WHERE key = ANY($1)", []any{keys}
	}
	var out []configuration.Item
	var tally configuration.Tally
	err := s.client.Read(ctx, op, func(row pgx.CollectableRow) error {
		var i configuration.Item
		var pairs string
		if err := row.Scan(&i.Key, &i.Value, &i.Version, &pairs); err != nil {
			return err
		}
		var err error
		if i.Metadata, err = metadataOf(pairs); err != nil {
			s.flaws.Warn(i.Key, "a configuration item has no metadata: what the table has is no JSON object", "hint",
				"write a JSON object into the column metadata of "+s.table)
		}
		if i.Deleted() { // an empty item means a deletion
			return nil
		}
		out = append(out, i)
		return tally.Add(op, &i)
	}, sql+newest, args...)
	return out, err
}

// metadataOf converts a JSON object. Values that are not text become their JSON text.
func metadataOf(text string) (map[string]string, error) {
	var pairs map[string]json.RawMessage
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &pairs); err != nil || len(pairs) == 0 {
		return nil, err
	}
	out := make(map[string]string, len(pairs))
	for name, raw := range pairs {
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		out[name] = value
	}
	return out, nil
}

// Listen implements follow.Source.
func (s source) Listen(ctx context.Context, channel string, reports follow.Reports) error {
	if channel == "" {
		reports.Silent("neither notifyChannel of the component nor " + requestChannel + " of the request is set")
		<-ctx.Done()
		return ctx.Err()
	}
	return s.client.Listen(ctx, channel, reports.Ready, func(payload string) {
		// The payload is {"data": {"key": ...}}; the case of the names is ignored. Follow then reads the row from the
		// table, because a payload has at most 8000 bytes and does not show whether the row was deleted.
		var message struct {
			Data struct {
				Key string `json:"key"`
			} `json:"data"`
		}
		if err := json.Unmarshal([]byte(payload), &message); err != nil || message.Data.Key == "" {
			reports.Changed()
			return
		}
		reports.Changed(message.Data.Key)
	})
}
