package http

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/api/pubsub"
)

// pubsubRoutes serves requests that publish messages.
type pubsubRoutes struct {
	*core
	topics *pubsub.Service
}

func (s *pubsubRoutes) routes() []route {
	return []route{
		{verbs: "POST PUT", path: "/v1.0/publish/bulk/{pubsub}/*", serve: s.publishBulk},
		{verbs: "POST PUT", path: "/v1.0-alpha1/publish/bulk/{pubsub}/*", serve: s.publishBulk},
		{verbs: "POST PUT", path: "/v1.0/publish/{pubsub}/*", serve: s.publish},
	}
}

// destination is the component and the topic that a request publishes to, with the metadata of the request.
type destination struct {
	component, topic string
	metadata         map[string]string
}

// open reads the path, the query and the body of a request that publishes messages. words is the number of segments of
// the path before the component. The caller must release the body.
func (s *pubsubRoutes) open(p *reply, r *http.Request, words int) (to destination, body *buffer, err error) {
	path := restOf(r.URL, "/")
	for range words {
		if _, err := path.next(); err != nil {
			return to, nil, err
		}
	}
	if to.component, err = path.next(); err != nil {
		return to, nil, err
	}
	if to.topic, err = path.all(); err != nil {
		return to, nil, err
	}
	q, err := parseQuery(r)
	if err != nil {
		return to, nil, err
	}
	to.metadata = q.metadata
	body, err = s.body(p, r)
	return to, body, err
}

// traceOf returns the headers with the trace of a request.
func traceOf(r *http.Request) http.Header {
	out := http.Header{}
	for _, name := range []string{"Traceparent", "Tracestate"} {
		if v := header(r, name); v != "" {
			out[name] = []string{v}
		}
	}
	return out
}

// publish serves POST and PUT /v1.0/publish/{pubsub}/{topic}.
func (s *pubsubRoutes) publish(p *reply, r *http.Request) error {
	to, body, err := s.open(p, r, 2)
	if err != nil {
		return err
	}
	defer s.release(body)
	ctx := s.deadline(p, r)
	defer ctx.end()
	// Brokers may keep the data, and the buffer is reused.
	if err := s.topics.Publish(ctx, &pubsub.PublishRequest{PubSub: to.component, Topic: to.topic, Trace: traceOf(r),
		Payload: pubsub.Payload{Data: slices.Clone(body.data), ContentType: header(r, headerContentType),
			Metadata: to.metadata}}); err != nil {
		return err
	}
	p.empty()
	return nil
}

// publishBulk serves POST and PUT /v1.0/publish/bulk/{pubsub}/{topic}.
func (s *pubsubRoutes) publishBulk(p *reply, r *http.Request) error {
	to, body, err := s.open(p, r, 3)
	if err != nil {
		return err
	}
	defer s.release(body)
	var tooMany error
	t := jsonbody.TallyItems(body.data)
	if t.List > pubsub.MaxEntries {
		tooMany = api.MalformedRequest("the bulk has too many entries; the limit is 10,000")
	}
	if err := s.afford(p, r, body.data, &t, tooMany); err != nil {
		return err
	}
	ctx := s.deadline(p, r)
	defer ctx.end()
	request := &pubsub.BulkRequest{PubSub: to.component, Topic: to.topic, Metadata: to.metadata, Trace: traceOf(r)}
	err = s.topics.PublishBulk(ctx, request, func() ([]pubsub.Entry, *api.Error) {
		var list []pubsub.EntryJSON
		if err := json.Unmarshal(slices.Clone(body.data), &list); err != nil {
			return nil, s.topics.EntriesInvalid(request, "the body is not a list of entries")
		}
		return s.topics.EntriesOf(request, list)
	})
	var partial *pubsub.Partial
	if errors.As(err, &partial) {
		return bulkFailed(p, err, partial)
	}
	if err == nil {
		p.empty()
	}
	return err
}

// bulkFailed answers a bulk request if some of its entries were not published. It writes the failed entries to the
// body. It also writes them to headers if they are short enough, because some of Dapr's clients read only the headers.
func bulkFailed(p *reply, err error, partial *pubsub.Partial) error {
	e := api.AsError(err)
	answer, failed := json.Marshal(struct {
		Entries []pubsub.FailedEntry `json:"failedEntries"`
		Code    string               `json:"errorCode"`
	}{partial.Entries, e.Code})
	if failed != nil { // strings can always be encoded
		return err
	}
	if err := p.room(len(answer)); err != nil {
		return api.AnswerOverloaded(err)
	}
	if len(answer) <= largestHeader {
		metadataHeaders(p.Header(), map[string]string{"responseData": string(answer), "error": e.Message})
	}
	p.respond(status(e.Kind), valueJSON, answer)
	return nil
}

// largestHeader limits the size in bytes of the header with the answer to a bulk request. A larger answer is sent only
// as a body.
const largestHeader = 8 << 10
