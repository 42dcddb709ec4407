package loader

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
)

// StateFields returns the metadata fields that every state store has.
func StateFields() []component.Field {
	return []component.Field{
		{Name: state.MetadataKeyPrefix, Default: state.KeyPrefixAppID, Check: checkKeyPrefix},
		{Name: state.MetadataDefaultConsistency, Default: state.Eventual.String(), Check: checkConsistency},
		{Name: state.MetadataDefaultTTL, Kind: component.Int, Replaces: []string{state.MetadataTTL}, Check: checkTTL},
		{Name: state.MetadataMaxValueSize, Kind: component.Size},
		{Name: state.MetadataActorStateStore, Kind: component.Bool},
		{Name: state.MetadataOutboxPubSub},
		{Name: state.MetadataOutboxTopic, Check: pubsub.CheckTopic},
		{Name: state.MetadataOutboxInternal},
		{Name: state.MetadataOutboxDiscard, Kind: component.Bool},
		{Name: state.MetadataPrimaryKey, Secret: true, Security: true, Reference: true,
			Check: state.CheckEncryptionKey},
		{Name: state.MetadataSecondaryKey, Secret: true, Security: true, Reference: true,
			Check: state.CheckEncryptionKey},
	}
}

func checkKeyPrefix(text string) error {
	_, err := state.ParseKeyPrefix(text)
	return err
}

func checkConsistency(text string) error {
	_, err := state.ParseConsistency(strings.ToLower(text))
	return err
}

func checkTTL(text string) error {
	v, err := state.ParseTTL(map[string]string{state.MetadataTTL: text})
	if err != nil || v.Seconds > math.MaxInt32 {
		return errors.New("is not a whole number of seconds from -1 to 2147483647")
	}
	return nil
}

// settings reads the fields of StateFields. The values have been checked.
func settings(v component.Values) (state.Settings, error) {
	prefix, err := state.ParseKeyPrefix(v.Text(state.MetadataKeyPrefix))
	if err != nil {
		return state.Settings{}, err
	}
	level, err := state.ParseConsistency(strings.ToLower(v.Text(state.MetadataDefaultConsistency)))
	if err != nil {
		return state.Settings{}, err
	}
	box, err := outbox(v)
	if err != nil {
		return state.Settings{}, err
	}
	return state.Settings{
		Outbox:             box,
		KeyPrefix:          prefix,
		DefaultConsistency: max(level, state.Eventual),
		DefaultTTL:         time.Duration(max(v.Int(state.MetadataDefaultTTL), 0)) * time.Second,
		MaxValueSize:       v.Int(state.MetadataMaxValueSize),
		ActorStore:         v.Bool(state.MetadataActorStateStore),
	}, nil
}

// outbox returns the outbox settings of a state store, or nil if the store has no outbox.
func outbox(v component.Values) (*state.Outbox, error) {
	o := &state.Outbox{PubSub: v.Text(state.MetadataOutboxPubSub), Topic: v.Text(state.MetadataOutboxTopic),
		Internal: v.Text(state.MetadataOutboxInternal)}
	switch {
	case o.PubSub == "" && o.Topic == "" && o.Internal == "":
		return nil, nil
	case o.PubSub == "" || o.Topic == "":
		return nil, errors.New("an outbox needs both " + state.MetadataOutboxPubSub + " and " +
			state.MetadataOutboxTopic + ": set both, or none of the settings that begin with outbox")
	}
	return o, nil
}

// encryption returns the keys that encrypt values; nil = no encryption.
func encryption(v component.Values) (*state.KeyRing, error) {
	if !v.Given(state.MetadataPrimaryKey) && !v.Given(state.MetadataSecondaryKey) {
		return nil, nil
	}
	return state.NewKeyRing(v.Text(state.MetadataPrimaryKey), v.Text(state.MetadataSecondaryKey))
}
