-- Leases the earliest due tasks of lanes that aren't full.
local now, lease_end, lease = argument(), argument(), argument()
local most, most_per_lane = tonumber(argument()), tonumber(argument())
local busy = {}
each(function()
  local lane = argument()
  busy[lane] = tonumber(argument())
end)

local lanes = call('ZRANGEBYSCORE', prefix .. ':lanes', '-inf', now, 'WITHSCORES')
local earliest = {}
for i = 1, #lanes, 2 do
  local lane, first = lanes[i], tonumber(lanes[i + 1])
  -- No task of this lane, or of those after it, is due earlier than the ones found so far.
  if earliest[most] and earliest[most].due_at <= first then break end
  local room = math.min(most_per_lane - (busy[lane] or 0), most)
  if room > 0 then
    local found = call('ZRANGEBYSCORE', prefix .. ':lane:' .. lane, '-inf', now, 'WITHSCORES',
      'LIMIT', 0, room)
    for j = 1, #found, 2 do
      table.insert(earliest, {id = found[j], due_at = tonumber(found[j + 1])})
    end
    table.sort(earliest, function(one, other)
      if one.due_at ~= other.due_at then return one.due_at < other.due_at end
      return one.id < other.id
    end)
  end
end

local leased = {}
for i = 1, math.min(#earliest, most) do
  local id = earliest[i].id
  local name = task_key(id)
  local task = call('HMGET', name, 'key', 'lane', 'payload', 'failed', 'created_at', 'state')
  call('HSET', name, 'state', 'leased', 'lease', lease, 'due_at', lease_end)
  place(id, task[2], task[6], 'leased', lease_end)
  table.insert(leased, {id, task[1], task[2], task[3], task[4], task[5]})
end
finish_lanes()
return leased
