package console

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/configurations"
)

// Blocks gives access to locks and configuration items. Implementations are safe for concurrent use.
type Blocks interface {
	// HeldLocks lists every lock that has an owner.
	HeldLocks(ctx context.Context) ([]schema.LockStatus, error)
	// ReleaseLock ends a lock, regardless of its owner.
	ReleaseLock(ctx context.Context, r schema.LockReleaseRequest) (schema.LockStatus, error)
	// ConfigurationStores returns the names of the configuration stores of this node.
	ConfigurationStores() []string
	// ConfigurationItems returns the items of a configuration store that have the given keys. If keys is nil, it
	// returns all items.
	ConfigurationItems(ctx context.Context, store string, keys []string) ([]configurations.Change, error)
}

// blocksTime is the timeout for reading the data of a page, such as locks, jobs or topics.
const blocksTime = 5 * time.Second

// locksBody lists the locks that have an owner.
func locksBody(r *request) (html, error) {
	ctx, cancel := context.WithTimeout(r.Context(), blocksTime)
	defer cancel()
	locks, err := r.console.config.Blocks.HeldLocks(ctx)
	if err != nil {
		return "", err
	}
	head := "Store|Application|Resource|Owner|Fencing token|Lease left|Lease|State store"
	if r.console.config.Write {
		head += "|Change"
	}
	var rows []html
	for i := range locks {
		l := &locks[i]
		cells := []html{text(l.Store), text(l.Prefix), code(l.Resource), text(l.Owner), text(l.Revision),
			text(leaseLeft(l)), text(age(time.Duration(l.ExpiryMS) * time.Millisecond)), text(l.StateStore)}
		if r.console.config.Write {
			cells = append(cells, r.releaseForm(l))
		}
		rows = append(rows, row(cells...))
	}
	return card("locks", "Locks that have an owner", grid("Locks", head, rows)), nil
}

// leaseLeft returns how long the lock stays valid if it is not renewed.
func leaseLeft(l *schema.LockStatus) string {
	if l.LeftMS == nil {
		return ""
	}
	return age(time.Duration(*l.LeftMS) * time.Millisecond)
}

// releaseForm renders the form with which a user releases a lock. The form contains the fencing token of the lock. If
// the lock has another token when the form is submitted, the release fails.
func (r *request) releaseForm(l *schema.LockStatus) html {
	return h(`<form method="post" action="/locks/release">%%%%%<button class="danger" data-confirm="%">`+
		`Release</button></form>`, r.csrf(), hidden("store", l.Store), hidden("prefix", l.Prefix),
		hidden("resource", l.Resource), hidden("revision", l.Revision), esc("Release "+l.Resource+" of "+l.Owner+"?"))
}

// releaseLock handles the form of releaseForm.
func (r *request) releaseLock() error {
	f := r.PostForm
	prefix := f.Get("prefix")
	_, err := r.console.config.Blocks.ReleaseLock(r.Context(), schema.LockReleaseRequest{Store: f.Get("store"),
		Resource: f.Get("resource"), Prefix: &prefix, Revision: f.Get("revision")})
	r.audit(r.Context(), "release lock", "store", f.Get("store"), "prefix", prefix, "resource", f.Get("resource"),
		"error",
		textOrEmpty(err))
	if err != nil {
		return err
	}
	http.Redirect(r.w, r.Request, "/locks", http.StatusSeeOther)
	return nil
}

// configurationBody renders the items of all configuration stores. It writes an audit log line for each store.
func configurationBody(r *request) (html, error) {
	ctx, cancel := context.WithTimeout(r.Context(), blocksTime)
	defer cancel()
	var cards []html
	for i, store := range r.console.config.Blocks.ConfigurationStores() {
		items, err := r.console.config.Blocks.ConfigurationItems(ctx, store, nil)
		r.audit(ctx, "read configuration", "store", store, "error", textOrEmpty(err))
		id := "configuration-" + strconv.Itoa(i)
		if err != nil {
			cards = append(cards, card(id, store, failure(textOf(err))))
			continue
		}
		var rows []html
		for _, item := range items {
			rows = append(rows, row(code(item.Key), text(item.Version), code(item.Value)))
		}
		cards = append(cards, card(id, store, grid("Items of "+store, "Key|Version|Value", rows)))
	}
	if len(cards) == 0 {
		return card("configuration", "No configuration store", "<p>This node has none.</p>"), nil
	}
	return joined(cards), nil
}
