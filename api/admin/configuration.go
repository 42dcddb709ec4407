package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

const (
	configurationPath = "/v1/configuration/{store}"
	watchSuffix       = "/watch"

	// maxItems bounds a write of configuration items, in bytes.
	maxItems = 32 << 20
	// itemsTime bounds a request for configuration items. It is longer than the limit of other requests, because
	// one request may read or write all items of a store.
	itemsTime = 30 * time.Second
	// ItemsTime is the timeout of clients for a request for configuration items.
	ItemsTime = itemsTime + (RequestTime - answerTime)
)

// ConfigurationPath returns the path at which the items of a configuration store are read and written.
func ConfigurationPath(store string) string { return "/v1/configuration/" + url.PathEscape(store) }

// ConfigurationWatchPath returns the path for watching a configuration store. The response has the current items, and
// then their changes, as one ConfigurationLine per line.
func ConfigurationWatchPath(store string) string {
	return ConfigurationPath(store) + watchSuffix
}

// ConfigurationLine is one line of the response to a watch of a configuration store. The first line has the items that
// exist when the watch begins, or no field if there are none. Every later line has exactly one field.
type ConfigurationLine struct {
	Items []configurations.Change `json:"items,omitempty"`
	Error json.RawMessage         `json:"error,omitempty"` // encoded like an error body; only in the last line
}

// Configurations is the part of Node that reads and writes configuration items.
type Configurations interface {
	// ConfigurationItems returns the items with the given keys, or all. The read is linearizable.
	ConfigurationItems(ctx context.Context, store string, keys []string) ([]configurations.Change, error)
	// WriteConfiguration applies changes, all or none, and returns the new versions.
	WriteConfiguration(ctx context.Context, store string, changes []configurations.Change) ([]string, error)
	// WatchConfiguration subscribes to items. It begins with the present ones.
	WatchConfiguration(ctx context.Context, store string, keys []string) (configuration.Subscription, error)
}

func (h *handler) configurationItems(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), itemsTime)
	defer cancel()
	items, err := h.node.ConfigurationItems(ctx, r.PathValue("store"), r.URL.Query()["key"])
	h.answer(w, items, err)
}

func (h *handler) writeConfiguration(w http.ResponseWriter, r *http.Request) {
	var changes []configurations.Change
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxItems))
	d.DisallowUnknownFields()
	if err := d.Decode(&changes); err != nil {
		h.answer(w, nil, &fault.Error{Code: fault.Invalid, Op: "admin.configuration",
			Msg:  "the request cannot be read",
			Hint: "send at most 32 MiB at once, with the quorate command of the version that the node runs", Err: err})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), itemsTime)
	defer cancel()
	versions, err := h.node.WriteConfiguration(ctx, r.PathValue("store"), changes)
	if versions == nil {
		versions = []string{}
	}
	h.answer(w, versions, err)
}

func (h *handler) watchConfiguration(w http.ResponseWriter, r *http.Request) {
	stream(h, w, func(e json.RawMessage) ConfigurationLine { return ConfigurationLine{Error: e} },
		func(send func(ConfigurationLine) error) error {
			ctx, cancel := context.WithTimeout(r.Context(), itemsTime)
			sub, err := h.node.WatchConfiguration(ctx, r.PathValue("store"), r.URL.Query()["key"])
			cancel()
			if err != nil {
				return err
			}
			defer sub.Close()
			present, cancel := context.WithCancel(r.Context())
			cancel() // Next returns the present items, if there are any, and does not wait
			items, err := sub.Next(present)
			if err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			for {
				if err := send(ConfigurationLine{Items: configurations.ChangesOf(items)}); err != nil {
					return err
				}
				if items, err = sub.Next(r.Context()); err != nil {
					return err
				}
			}
		})
}
