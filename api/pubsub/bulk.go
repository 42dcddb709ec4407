package pubsub

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// Entry is one message of a bulk.
type Entry struct {
	ID string // unique in the bulk
	Payload
}

// BulkRequest publishes several messages to one topic.
type BulkRequest struct {
	PubSub, Topic string
	Metadata      map[string]string // for names that the metadata of an entry does not have
	Trace         http.Header
}

// FailedEntry is an entry that was not published.
type FailedEntry struct {
	ID    string `json:"entryId"`
	Error string `json:"error"`
}

// Partial lists the entries of a bulk request that were not published (see PublishBulk).
type Partial struct{ Entries []FailedEntry }

// Error returns a text with the ids of the entries that were not published.
func (p *Partial) Error() string {
	ids := make([]string, len(p.Entries))
	for i := range ids {
		ids[i] = api.Shorten(p.Entries[i].ID)
	}
	return "these entries were not published: " + strings.Join(ids, ", ")
}

// MaxEntries is the largest number of entries of a bulk.
const MaxEntries = 10_000

// maxFilled limits the number of entries of a bulk request, multiplied by the number of its metadata pairs. Each entry
// gets a copy of the pairs, so a small request could otherwise need much memory.
const maxFilled = 100_000

// PublishBulk publishes several messages. It checks the component and the topic before it calls read, which returns the
// entries. If the broker does not publish all entries, the cause of the error is a *Partial with the entries that were
// not published.
func (s *Service) PublishBulk(ctx context.Context, r *BulkRequest, read func() ([]Entry, *api.Error)) error {
	i, err := s.target(r.PubSub, r.Topic, r.Metadata)
	if err != nil {
		return err
	}
	entries, unreadable := read()
	if unreadable != nil {
		return unreadable
	}
	if failure := s.checkEntries(r, entries); failure != nil {
		return failure
	}
	if len(entries) == 0 {
		return nil
	}
	if n := len(entries) * len(r.Metadata); n > maxFilled {
		return metadataInvalid(i.Name, nil, "every entry gets the metadata of the request, which are "+strconv.Itoa(n)+
			" pairs; the limit is "+strconv.Itoa(maxFilled))
	}
	messages := make([]pubsub.Message, len(entries))
	for n := range entries {
		p := &entries[n].Payload
		p.Metadata = fill(p.Metadata, r.Metadata)
		if text := checkMetadata(p.Metadata); text != "" {
			return metadataInvalid(i.Name, nil, "entry "+api.Shorten(entries[n].ID)+": "+text)
		}
		t, _ := s.span(ctx, r.Trace, i.Name, r.Topic)
		var failure *api.Error
		messages[n], failure = s.message(i, r.Topic, p, t)
		t.end(failure)
		if failure != nil {
			return failure
		}
	}
	partial := &Partial{}
	failure := s.send(ctx, i, r.Topic, messages, r.Metadata, func(f pubsub.Failure) {
		if f.Index >= 0 && f.Index < len(entries) { // a broker may return any index
			partial.Entries = append(partial.Entries, FailedEntry{entries[f.Index].ID, textOf(f.Err)})
		}
	})
	switch {
	case failure != nil:
		failure.Cause = &Partial{allFailed(entries, failure.Message)}
		return failure
	case len(partial.Entries) > 0:
		failure = publishFailed(i.Name, r.Topic, fault.New(fault.Internal, "pubsub.PublishBulk", partial.Error()))
		failure.Cause = partial
		return failure
	}
	return nil
}

func allFailed(entries []Entry, why string) []FailedEntry {
	out := make([]FailedEntry, len(entries))
	for i := range entries {
		out[i] = FailedEntry{entries[i].ID, why}
	}
	return out
}

func (s *Service) checkEntries(r *BulkRequest, entries []Entry) *api.Error {
	why, advice := "", ""
	seen := make(map[string]bool, len(entries))
	for i := range entries {
		id := entries[i].ID
		if id == "" || seen[id] {
			why = "entryId is duplicated or not present for entry"
			advice = " " + strconv.Itoa(i) + ": give each entry an entryId of its own"
			break
		}
		seen[id] = true
	}
	switch {
	case len(entries) > MaxEntries:
		why, advice = "there are too many entries; the limit is 10,000", ""
	}
	if why == "" {
		return nil
	}
	e := eventsInvalid(reasonEvents, "error marshaling events to bytes", r.PubSub, r.Topic, ". error: ",
		s.o.App.ID, why)
	e.Details.Metadata = api.Attributes("appID", s.o.App.ID, "error", why+advice) // the message is the same as in Dapr
	return e
}

// fill returns metadata together with the defaults whose names are not in metadata. The names for the time to live (see
// isTTL) count as the same name.
func fill(metadata, defaults map[string]string) map[string]string {
	switch {
	case len(defaults) == 0:
		return metadata
	case len(metadata) == 0:
		return defaults
	}
	out := maps.Clone(defaults)
	for name := range metadata {
		if isTTL(name) {
			maps.DeleteFunc(out, func(name, _ string) bool { return isTTL(name) })
			break
		}
	}
	maps.Copy(out, metadata)
	return out
}

// EntryJSON is an entry of a bulk in the body of a request.
type EntryJSON struct {
	EntryID     string            `json:"entryId"`
	Event       json.RawMessage   `json:"event"`
	ContentType string            `json:"contentType"`
	Metadata    map[string]string `json:"metadata"`
}

// EntriesInvalid returns the error for a request body that is not a list of entries, with the given reason.
func (s *Service) EntriesInvalid(r *BulkRequest, why string) *api.Error {
	return eventsInvalid(reasonUnmarshal, "error when unmarshaling the request", r.PubSub, r.Topic, ": ", s.o.App.ID,
		why)
}

// EntriesOf converts the entries of a body. It returns an error if an event does not fit its content type, or if the
// content type is not supported.
func (s *Service) EntriesOf(r *BulkRequest, list []EntryJSON) ([]Entry, *api.Error) {
	out := make([]Entry, len(list))
	for i := range list {
		data, why := eventBytes(list[i].ContentType, list[i].Event)
		if why != "" {
			return nil, eventsInvalid(reasonEnvelope, "error when marshalling cloud event envelope", r.PubSub, r.Topic,
				": ", s.o.App.ID, "entry "+strconv.Itoa(i)+": "+why)
		}
		out[i] = Entry{list[i].EntryID, Payload{data, list[i].ContentType, list[i].Metadata}}
	}
	return out, nil
}

// eventBytes decodes an event according to its content type. If the event is not valid, eventBytes returns the reason
// as its second result.
func eventBytes(contentType string, event json.RawMessage) ([]byte, string) {
	base, _, _ := strings.Cut(contentType, ";")
	base = strings.ToLower(strings.TrimSpace(base))
	var text string
	isText := json.Unmarshal(event, &text) == nil
	switch {
	case base == "":
		return nil, "contentType is missing: set it, such as " + contentJSON
	case base == contentJSON || base == contentCloudEvent:
		if len(event) == 0 {
			event = json.RawMessage("null")
		}
		return event, ""
	case !isText:
		return nil, "the event does not fit the content type " + api.Shorten(contentType)
	case base == contentOctets:
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, "the event is not base64"
		}
		return data, ""
	case strings.HasPrefix(base, "text/") || base == "application/xml":
		return []byte(text), ""
	}
	return nil, "the content type " + api.Shorten(contentType) + " is not supported"
}
