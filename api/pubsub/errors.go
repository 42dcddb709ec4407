package pubsub

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/quorate/quorate/api"
)

// The reasons of Dapr.
const (
	reasonNotFound      = "DAPR_PUBSUB_NOT_FOUND"
	reasonNotConfigured = "DAPR_PUBSUB_NOT_CONFIGURED"
	reasonNameEmpty     = "DAPR_PUBSUB_NAME_EMPTY"
	reasonTopicEmpty    = "DAPR_PUBSUB_TOPIC_NAME_EMPTY"
	reasonMetadata      = "DAPR_PUBSUB_METADATA_DESERIALIZATION"
	reasonCreate        = "DAPR_PUBSUB_CLOUD_EVENT_CREATION"
	reasonEnvelope      = "DAPR_PUBSUB_MARSHAL_ENVELOPE"
	reasonEvents        = "DAPR_PUBSUB_MARSHAL_EVENTS"
	reasonUnmarshal     = "DAPR_PUBSUB_UNMARSHAL_EVENTS"
	reasonForbidden     = "DAPR_PUBSUB_FORBIDDEN"
	reasonPublish       = "DAPR_PUBSUB_PUBLISH_MESSAGE"
)

// failure returns a public error about a component. The parameter about becomes the metadata in the details of the
// error. If resource is true, the details also name the component as the resource.
func failure(kind api.Kind, code, reason, message, component string, resource bool, about []api.Attribute) *api.Error {
	e := &api.Error{Kind: kind, Code: code, Message: message, Details: api.Details{Reason: reason, Metadata: about}}
	if resource {
		e.Details.Store, e.Details.Resource = api.ShortenName(component), "pubsub"
	}
	return e
}

// given returns the metadata of a request as attributes of an error, at most 32 of them.
func given(metadata map[string]string) []api.Attribute {
	var out []api.Attribute
	for _, name := range slices.Sorted(maps.Keys(metadata))[:min(len(metadata), 32)] {
		out = append(out, api.Attribute{Name: api.Shorten(name), Value: api.Shorten(metadata[name])})
	}
	return out
}

func nameEmpty(metadata map[string]string) *api.Error {
	return failure(api.NotFound, api.CodePubSubEmpty, reasonNameEmpty, "pubsub name is empty", "", true,
		given(metadata))
}

func notFound(name string, metadata map[string]string) *api.Error {
	return failure(api.NotFound, api.CodePubSubNotFound, reasonNotFound,
		"pubsub "+api.ShortenName(name)+" is not found", name, false, given(metadata))
}

func notConfigured(name string, metadata map[string]string) *api.Error {
	return failure(api.Missing, api.CodePubSubNotConfigured, reasonNotConfigured,
		"pubsub "+api.ShortenName(name)+" is not configured", name, false, given(metadata))
}

func starting(name string) *api.Error {
	return failure(api.Unavailable, api.CodePubSubNotFound, api.ReasonStarting, "pubsub "+api.ShortenName(name)+
		" is not open yet: components are being loaded (wait for /v1.0/healthz/outbound)", name, true, nil)
}

func topicEmpty(name string, metadata map[string]string) *api.Error {
	return failure(api.NotFound, api.CodeTopicNameEmpty, reasonTopicEmpty,
		"topic is empty in pubsub "+api.ShortenName(name), name, true, given(metadata))
}

func metadataInvalid(name string, metadata map[string]string, why string) *api.Error {
	return failure(api.Malformed, api.CodePubSubMetadata, reasonMetadata,
		"failed deserializing metadata. Error: "+why, name, true, given(metadata))
}

func forbidden(name, topic, app string) *api.Error {
	text := "topic " + api.Shorten(topic) + " is not allowed for app id " + app
	return failure(api.Denied, api.CodePubSubForbidden, reasonForbidden, text, name, true,
		api.Attributes("topic", api.Shorten(topic), "error", text))
}

func cannotCreate(name, app string, cause error) *api.Error {
	e := failure(api.Failed, api.CodeCloudEventCreation, reasonCreate, "cannot create cloudevent", name, true,
		api.Attributes("appID", app, "error", cause.Error()))
	e.Cause = cause
	return e
}

// eventsInvalid returns the error for a bulk request whose entries are invalid. The message consists of the sentence,
// the topic, the component, the separator and the text of why. The parameter reason is for the details of the error.
func eventsInvalid(reason, sentence, name, topic, separator, app, why string) *api.Error {
	return failure(api.Malformed, api.CodePubSubEvents, reason, sentence+" for topic "+api.Shorten(topic)+" pubsub "+
		api.ShortenName(name)+separator+why, name, true, api.Attributes("appID", app, "error", why))
}

func publishFailed(name, topic string, err error) *api.Error {
	text := textOf(err)
	if errors.Is(err, context.DeadlineExceeded) {
		text = cmp.Or(text, "it did not answer before the request's time was over")
	}
	text = "error when publishing to topic " + api.Shorten(topic) + " in pubsub " + name + ": " + text
	e := failure(api.Failed, api.CodePubSubPublish, reasonPublish, text, name, true,
		api.Attributes("topic", api.Shorten(topic), "error", text))
	e.Cause = err
	return e
}

// outboxFailed returns the error for a transaction whose events cannot be published. The transaction has changed
// nothing.
func outboxFailed(name, why string, cause error) *api.Error {
	text := "error while publishing outbox message: " + why
	e := failure(api.Failed, api.CodePubSubOutbox, api.ReasonOutbox, text, name, true, api.Attributes("error", text))
	e.Cause = cause
	return e
}

// notFoundStream returns the error of a stream that names a component that does not exist.
func notFoundStream(name string) *api.Error { return notFound(name, nil) }

func closing() *api.Error {
	return &api.Error{Kind: api.Unavailable, Code: api.CodePubSubPublish, Message: "the node is stopping",
		Details: api.Details{Reason: api.ReasonClosing}}
}

func streamInvalid(err error) *api.Error {
	return &api.Error{Kind: api.Malformed, Code: api.CodeMalformed, Message: textOf(err), Cause: err}
}
