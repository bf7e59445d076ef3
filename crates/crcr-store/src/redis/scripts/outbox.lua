-- The oldest facts, for one relay at a time: while it copies them, others get none. If two copied the
-- same facts after all, the second copy would replace the first.
local reader, milliseconds, most = argument(), argument(), tonumber(argument())
local most_bytes = tonumber(argument())
local name = prefix .. ':outbox'
-- A running relay asks every second, so a restore sees by this key that one uses the store. If this write fails, the
-- facts are still copied.
if call('PTTL', prefix .. ':relay_seen') < milliseconds / 2 then
  redis.pcall('SET', prefix .. ':relay_seen', reader, 'PX', milliseconds)
end
local holder = call('GET', prefix .. ':outbox_reader')
if holder and holder ~= reader then return {} end
-- In parts, because a few thousand large facts would hold the server up.
local found, bytes, from = {}, 0, '-'
while #found < most and bytes < most_bytes do
  local facts = call('XRANGE', name, from, '+', 'COUNT', math.min(most - #found, 100))
  if #facts == 0 then break end
  for _, fact in ipairs(facts) do
    if bytes < most_bytes then
      table.insert(found, {fact[1], fact[2][2]})
      bytes = bytes + #fact[2][2]
      from = '(' .. fact[1]
    end
  end
end
if #found > 0 then
  -- Copying goes on when the server is full: it makes room.
  redis.pcall('SET', prefix .. ':outbox_reader', reader, 'PX', milliseconds)
end
return found
